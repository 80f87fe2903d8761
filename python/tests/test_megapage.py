"""Arrays on huge pages and arrays that survive a restart. Run with `python3 -m unittest`, with MEGAPAGE_C_LIBRARY set.

MEGAPAGE_TEST_HUGETLBFS names a directory on a hugetlbfs with at least 16 free pages of 2 MiB; without it what needs pages
from the pool is skipped.
"""

import gc
import os
import select
import signal
import subprocess
import sys
import tempfile
import unittest

import numpy

import megapage

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(megapage.__file__)))
HUGETLBFS = os.environ.get("MEGAPAGE_TEST_HUGETLBFS")


def another_process(program, *arguments):
    """Runs a program in a separate process. Returns its status, its output and its standard error."""
    environment = dict(os.environ, PYTHONPATH=PACKAGE)
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, env=environment)
    return done.returncode, done.stdout.strip(), done.stderr.strip()


def started(program, *arguments):
    """Starts a program in a separate process."""
    environment = dict(os.environ, PYTHONPATH=PACKAGE)
    return subprocess.Popen([sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True, env=environment)


class Remapping(unittest.TestCase):
    def test_the_interpreter_goes_on_after_it_was_moved(self):
        program = ("import megapage; first = megapage.remap_self(libraries=['libc.so.6'])\n"
                   "second = megapage.remap_self(libraries=['libc.so.6'])\n"
                   "print(first.possible >= first.huge, second.threads >= 1, sum(i * i for i in range(1000)))")
        self.assertEqual(another_process(program), (0, "True True 332833500", ""))

    def test_what_cannot_be_moved(self):
        with self.assertRaises(ValueError):
            megapage.remap_self("4k")
        with self.assertRaisesRegex(megapage.MegapageError, "no library 'libnone.so' is loaded"):
            megapage.remap_self(libraries=["libnone.so"])


class Arrays(unittest.TestCase):
    def test_an_array_of_zeros_on_transparent_huge_pages(self):
        values = megapage.array((512, 1024, 4), "f8")
        self.assertEqual((values.shape, values.dtype.str, values.ctypes.data % (2 << 20)), ((512, 1024, 4), "<f8", 0))
        self.assertFalse(values.any())
        values[:] = numpy.arange(values.size).reshape(values.shape)
        backing = megapage.backing(values)
        # The kernel may have no huge pages to give. Checks only that the parts add up.
        if backing.exact:
            self.assertEqual(backing.thp + backing.base + backing.absent, values.nbytes)
        self.assertTrue(0.0 <= backing.huge_share <= 1.0)
        part = values[3:5]
        del values
        gc.collect()
        self.assertEqual(part[0, 0, 0], 3 * 4096.0)

    def test_bad_requests(self):
        for shape, dtype, error in [((0, 3), "f8", ValueError), (5, "O", TypeError), (5, "no type", TypeError)]:
            with self.assertRaises(error, msg=f"{shape} {dtype}"):
                megapage.array(shape, dtype)
        with self.assertRaises(ValueError):
            megapage.array(5, pages="3m")
        with self.assertRaises(ValueError):
            megapage.backing(megapage.array((8, 8))[:, 1])

    @unittest.skipUnless(HUGETLBFS, "needs pages from the pool")
    def test_an_array_on_pages_from_the_pool(self):
        values = megapage.array(1 << 20, "u4", pages="2m")
        self.assertFalse(values.any())
        values[:] = 7
        backing = megapage.backing(values)
        self.assertEqual((backing.thp, backing.base), (0, 0))
        self.assertGreaterEqual(backing.hugetlb_2m, values.nbytes)
        self.assertEqual(backing.huge_share, 1.0)


BUILD_OR_FIND = """
import sys, numpy, megapage
with megapage.Segment("python-test", "index", "8m", directory=sys.argv[1]) as segment:
    values, found = segment.array("squares", 100_000, "i8")
    if not found:
        values[:] = numpy.arange(100_000) ** 2
        segment.publish("squares")
    print("found" if found else "built", int(values.sum()))
    del values
"""
KILLED = """
import os, signal, sys, megapage
segment = megapage.Segment("python-test", "index", "8m", directory=sys.argv[1])
values, found = segment.array("half", 1000, "i8")
values[:500] = 1
os.kill(os.getpid(), signal.SIGKILL)
"""


SUCCESSOR = """
import sys, megapage
[segment] = megapage.take_over(sys.argv[1], 60)
values, found = segment.array("whole", 1000, "i8")
print(found, int(values.sum()), segment.about()["owner"])
"""


class Segments(unittest.TestCase):
    def setUp(self):
        tree = tempfile.TemporaryDirectory()
        self.addCleanup(tree.cleanup)
        self.directory = os.path.realpath(tree.name)

    def segment(self, **options):
        return megapage.Segment("python-test", "index", "8m", directory=self.directory, **options)

    def survives(self, directory):
        total = str(sum(number * number for number in range(100_000)))
        self.assertEqual(another_process(BUILD_OR_FIND, directory), (0, "built " + total, ""))
        self.assertEqual(another_process(BUILD_OR_FIND, directory), (0, "found " + total, ""))

    def test_an_array_survives_a_restart(self):
        self.survives(self.directory)

    @unittest.skipUnless(HUGETLBFS, "needs pages from the pool")
    def test_an_array_survives_a_restart_on_huge_pages(self):
        self.survives(HUGETLBFS)
        with megapage.Segment("python-test", "index", "8m", directory=HUGETLBFS) as segment:
            self.assertEqual((segment.found, segment.about()["hugetlb"]), (True, 1))

    def test_what_a_kill_left_half_built_is_built_anew(self):
        self.assertEqual(another_process(KILLED, self.directory)[0], -signal.SIGKILL)
        with self.segment() as segment:
            values, found = segment.array("half", 1000, "i8")
            self.assertFalse(found)
            self.assertFalse(values.any(), "no old byte")
            del values

    def test_what_is_found_is_mapped_without_touching_it_unless_populated(self):
        absent = []
        for options in ({}, {}, {"populate": True}):
            with self.segment(**options) as segment:
                values, found = segment.array("whole", 500_000, "i8")
                self.assertEqual(found, bool(absent))
                absent.append(megapage.backing(values).absent)
                if not found:
                    values[:] = 7
                    segment.publish("whole")
                self.assertEqual(values.sum(), 3_500_000)
                del values
        self.assertGreater(absent[1], 1_000_000)
        self.assertEqual((absent[0], absent[2]), (0, 0))

    def test_another_process_takes_a_segment_over(self):
        path = os.path.join(self.directory, "upgrade")
        self.assertIsNone(megapage.take_over(path))
        with self.segment(unlink="always") as segment:
            values, _ = segment.array("whole", 1000, "i8")
            values[:] = 7
            segment.publish("whole")
            with megapage.Listener(path) as listener:
                self.assertFalse(listener.wait(0))
                successor = started(SUCCESSOR, path)
                self.assertTrue(listener.wait(60))
                self.assertEqual(select.select([listener], [], [], 0)[0], [])
                with self.assertRaises(BufferError):
                    listener.hand_over([segment])
                del values
                self.assertTrue(listener.hand_over([segment], 60))
                with self.assertRaises(ValueError):
                    listener.wait(0)
            self.assertEqual(successor.communicate(timeout=60), ("True 7000 1\n", ""))
            with self.assertRaises(ValueError):
                segment.array("whole", 1000, "i8")

    def test_a_refused_upgrade_leaves_the_segment_open(self):
        path = os.path.join(self.directory, "upgrade")
        with self.segment(unlink="always", layout="file-per-page") as segment, megapage.Listener(path) as listener:
            with self.assertRaises(megapage.MegapageError):
                listener.hand_over([segment])
            successor = started(SUCCESSOR, path)
            self.assertTrue(listener.wait(60))
            with self.assertRaisesRegex(megapage.MegapageError, "neither names nor descriptors"):
                listener.hand_over([segment], 60)
            self.assertIn("keeps its segments", successor.communicate(timeout=60)[1])
            segment.array("still", 10, "i8")

    def test_several_arrays_by_name(self):
        with self.segment() as segment:
            first, _ = segment.array("first", (10, 10), "f4")
            second, _ = segment.array("second", 5, "?")
            first[:], second[:] = 2.5, True
            segment.publish("first")
            segment.publish("second")
            del first, second
        with self.segment() as segment:
            first, found = segment.array("first", (10, 10), "f4")
            self.assertTrue(found and (first == 2.5).all())
            with self.assertRaisesRegex(ValueError, "shape \\(10, 10\\)"):
                segment.array("first", (10, 11), "f4")
            with self.assertRaises(BufferError):
                segment.remove("second")
            del first
            segment.remove("second")
            with self.assertRaises(KeyError):
                segment.publish("second")
            self.assertFalse(segment.array("second", 5, "?")[1])

    def test_memory_that_is_in_use_is_not_unmapped(self):
        segment = self.segment()
        values, _ = segment.array("one", 100, "i4")
        part = values[10:20]
        del values
        with self.assertRaises(BufferError):
            segment.close()
        part[:] = 3
        del part
        segment.close()
        segment.close()
        with self.assertRaisesRegex(ValueError, "closed"):
            segment.array("one", 100, "i4")
        # Not closed: the last array keeps the segment.
        values = self.segment().array("one", 100, "i4")[0]
        gc.collect()
        values[:] = 4
        with self.assertRaises(megapage.MegapageError):
            self.segment()
        del values
        gc.collect()
        self.segment().close()

    def test_bad_requests(self):
        for options, text in [({"unlink": "sometimes"}, "sometimes"), ({"pages": "4k"}, "4k"), ({"most": "much"}, "much")]:
            with self.assertRaisesRegex(ValueError, text):
                self.segment(**options)
        with self.assertRaisesRegex(megapage.MegapageError, "no name"):
            megapage.Segment("python/test", "index", "8m", directory=self.directory)
        with self.assertRaises(megapage.MegapageError) as caught:
            megapage.Segment("python-test", "index", "8m", directory="/nowhere")
        self.assertEqual(caught.exception.errno, 2)
        with self.segment() as segment:
            for name in ["", "x" * 65]:
                with self.assertRaises(ValueError):
                    segment.array(name, 5)
            with self.assertRaises(megapage.MegapageError):
                segment.array("large", 1 << 30, "i8")


if __name__ == "__main__":
    unittest.main()
