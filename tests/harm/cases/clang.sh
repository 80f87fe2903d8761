# program: clang compiling C++ templates
# version: clang++ --version
"$RUN" clang++ -O1 -std=c++17 -c -o t.o "$REPOSITORY/tests/programs/src/templates.cc"
sha256sum <t.o
