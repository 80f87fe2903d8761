"""Boot parameters as `pool persist` writes them: an image's GRUB files, and what their shell makes of the command line."""

import pathlib
import shutil

import vmcheck as vm

IMAGE = pathlib.Path("/root/image")


def command_line(*arguments, allowed=(0, 1)):
    """What `pool persist --apply` in an image leaves on the command line of the next boot; and how the command ended."""
    shutil.rmtree(IMAGE, ignore_errors=True)
    for name in ("etc/default/grub.d", "etc/sysctl.d", "boot/grub"):
        (IMAGE / name).mkdir(parents=True)
    (IMAGE / "etc/default/grub").write_text('GRUB_CMDLINE_LINUX=""\nGRUB_CMDLINE_LINUX_DEFAULT="quiet"\n')
    (IMAGE / "boot/grub/grub.cfg").write_text("\n")
    done = vm.megapage("pool persist", "pool", "persist", "--root", IMAGE, "--apply", *arguments, allowed=allowed)
    script = f'. {IMAGE}/etc/default/grub; for f in {IMAGE}/etc/default/grub.d/*; do [ ! -e "$f" ] || . "$f"; done; ' \
             'echo $GRUB_CMDLINE_LINUX $GRUB_CMDLINE_LINUX_DEFAULT'
    words = [word for word in vm.run(script).out.split() if word != "quiet"]
    return done, " ".join(words)
