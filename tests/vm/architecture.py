"""Differences between the machines' architectures: Debian's name, the compiler, the emulator and
its devices."""

import dataclasses
import os
import pathlib
import platform

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent.parent


@dataclasses.dataclass(frozen=True)
class Architecture:
    """One architecture. `records` is the device that the guest writes its records to; `channel` is
    how qemu makes it."""

    debian: str
    triple: str
    gcc_prefix: str
    qemu: str
    qemu_package: str
    emulated: tuple
    native: tuple
    console: str
    records: str
    channel: tuple
    append: tuple
    modules: tuple

    @property
    def is_host(self):
        """Returns true if this is the host's architecture: KVM may be used, and `make` has built
        for it."""
        return platform.machine() == self.triple.partition("-")[0]

    def tool(self, name):
        """Returns the name of a tool of the compiler: the host's own, or the cross compiler's."""
        return name if self.is_host else f"{self.gcc_prefix}-{name}"

    def release(self, host_release):
        """Returns the directory of cargo's build for it."""
        if self.is_host:
            return host_release
        target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target"))
        return target.absolute() / self.triple / "release"


ARCHITECTURES = {
    "amd64": Architecture(
        debian="amd64",
        triple="x86_64-unknown-linux-gnu",
        gcc_prefix="x86_64-linux-gnu",
        qemu="qemu-system-x86_64",
        qemu_package="qemu-system-x86",
        # No LA57: an address space that no case is about.
        emulated=("-cpu", "max,la57=off"),
        native=(),
        console="ttyS0",
        records="ttyS1",
        channel=("-serial", "stdio"),
        # On a busy host the emulated timer is late, which Linux 5.10 takes for a broken one.
        append=("no_timer_check",),
        modules=(),
    ),
    "arm64": Architecture(
        debian="arm64",
        triple="aarch64-unknown-linux-gnu",
        gcc_prefix="aarch64-linux-gnu",
        qemu="qemu-system-aarch64",
        qemu_package="qemu-system-arm",
        # Pointer authentication by the book costs the emulator half of its time.
        emulated=("-M", "virt", "-cpu", "max,pauth-impdef=on"),
        native=("-M", "virt,gic-version=host"),
        console="ttyAMA0",
        # The board has one serial line.
        records="hvc0",
        channel=("-device", "virtio-serial-pci", "-chardev", "stdio,id=records", "-device", "virtconsole,chardev=records"),
        append=(),
        modules=("virtio_console",),
    ),
}
