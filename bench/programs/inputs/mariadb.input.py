"""The directory of an empty MariaDB."""

import getpass
import pathlib
import subprocess
import sys

directory = pathlib.Path(sys.argv[1])
directory.mkdir()
subprocess.run(["mariadb-install-db", "--no-defaults", f"--datadir={directory}", "--skip-test-db",
                "--auth-root-authentication-method=normal", f"--user={getpass.getuser()}"],
               check=True, stdout=subprocess.DEVNULL)
# The server's user, which may be any, copies the directory.
subprocess.run(["chmod", "-R", "a+rX", directory], check=True)
