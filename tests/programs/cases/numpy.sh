# program: Python with NumPy
# version: /usr/bin/python3 -c 'import numpy; print("NumPy", numpy.__version__)'
# modes: default preload-thp
/usr/bin/python3 "$SRC/work-numpy.py" >plain.txt
"$RUN" /usr/bin/python3 "$SRC/work-numpy.py" >under.txt
cmp plain.txt under.txt
