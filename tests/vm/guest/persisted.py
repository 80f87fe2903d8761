"""Boot parameters as `pool persist` writes them on this machine: GRUB's files, and the command line
that a shell makes of them."""

import pathlib

import vmcheck as vm

DEFAULT = pathlib.Path("/etc/default/grub")


def command_line(*arguments, allowed=(0, 1)):
    """Runs `pool persist --apply`; returns how the command ended, and what it leaves on the command
    line of the next boot."""
    for directory in ("/etc/default/grub.d", "/etc/sysctl.d", "/boot/grub"):
        pathlib.Path(directory).mkdir(parents=True, exist_ok=True)
    for old in pathlib.Path("/etc/default/grub.d").glob("*megapage*"):
        old.unlink()
    DEFAULT.write_text('GRUB_CMDLINE_LINUX=""\nGRUB_CMDLINE_LINUX_DEFAULT="quiet"\n')
    pathlib.Path("/boot/grub/grub.cfg").write_text("\n")
    # Stands in for the generator of GRUB's configuration: here there is nothing to generate.
    update = pathlib.Path("/usr/sbin/update-grub")
    update.write_text("#!/bin/sh\nexit 0\n")
    update.chmod(0o755)
    done = vm.megapage("pool persist", "pool", "persist", "--apply", *arguments, allowed=allowed)
    script = f'. {DEFAULT}; for f in /etc/default/grub.d/*; do [ ! -e "$f" ] || . "$f"; done; ' \
             'echo $GRUB_CMDLINE_LINUX $GRUB_CMDLINE_LINUX_DEFAULT'
    words = [word for word in vm.run(script).out.split() if word != "quiet"]
    return done, " ".join(words)
