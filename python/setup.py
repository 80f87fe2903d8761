"""Settings that pyproject.toml cannot express: a wheel that holds libmegapage_c.so.0 is for one platform and any Python 3.

MEGAPAGE_WHEEL_PLATFORM names the platform (scripts/packages finds it by the library's symbols). Without it, and without the
library beside the package, the wheel is pure, and takes the library of an installed megapage.
"""

import os

from setuptools import setup

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:
    from wheel.bdist_wheel import bdist_wheel

platform = os.environ.get("MEGAPAGE_WHEEL_PLATFORM")


class Wheel(bdist_wheel):
    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = not platform

    def get_tag(self):
        return ("py3", "none", platform) if platform else super().get_tag()


setup(cmdclass={"bdist_wheel": Wheel})
