# program: Python with NumPy
# version: /usr/bin/python3 -c 'import numpy; print("NumPy", numpy.__version__)'
# modes: default preload-2m preload-thp tunable
/usr/bin/python3 "$SRC/work-numpy.py" >plain.txt
"$RUN" /usr/bin/python3 "$SRC/work-numpy.py" >under.txt
cmp plain.txt under.txt
