# program: CPython, 70 modules of its test suite
# version: /usr/bin/python3 --version
# modes: default
# seconds: 400
core="
test_array test_bytes test_call test_class test_collections test_copy test_deque test_dict test_enumerate test_fork1
test_format test_functools test_gc test_generators test_hash test_heapq test_int test_itertools test_list test_long
test_memoryio test_memoryview test_mmap test_ordered_dict test_random test_re test_set test_slice test_sort
test_struct test_thread test_threading test_tuple test_unicode test_weakref test_zlib
"
more="
test_ast test_base64 test_binascii test_bisect test_bz2 test_codecs test_compile test_complex test_contextlib test_csv
test_ctypes test_dataclasses test_difflib test_enum test_exceptions test_fileio test_float test_fractions test_gzip
test_hashlib test_iter test_json test_marshal test_math test_operator test_os test_pickle test_select test_shelve
test_subprocess test_userlist test_wait3 test_wait4 test_zipfile
"
suite() { # NAME MODULES: in one process, so that they all run on the same heap
    mkdir -p "$1"
    # -w: failed tests are run again. Some tests are about time, and fail on a busy machine now and
    # then.
    (cd "$1" && TMPDIR=$PWD "$RUN" /usr/bin/python3 -m test -w --timeout 1000 $2 >test.log 2>&1) || {
        echo "$1: $(grep -A12 -E 'tests? failed|== Tests result' "$1/test.log" | tail -12)" >&2
        return 1
    }
}
# In the foreground: the tests of SIGINT, which a background job ignores.
suite more "$more" &
more_job=$!
suite core "$core"
wait $more_job
