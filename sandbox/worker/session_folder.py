"""The files of a session: a file system of its own, or just a folder if there are no namespaces."""

from __future__ import annotations

import os

from . import disk, kernel, walls

KEEPER_FOLDER = "/in"
"""Folder where the keeper mounts the sessions' file systems. No child sees these mounts."""


class SessionFolder:
    """The files of one session."""

    def __init__(self, jail: walls.Jail, number: int, disk_mib: int) -> None:
        self.jail, self.disk_mib = jail, disk_mib
        self.path = f"{KEEPER_FOLDER if jail.has_namespaces else jail.scratch}/{number}"
        os.mkdir(self.path, 0o700)
        if jail.has_namespaces:
            flags = kernel.MS_NOSUID | kernel.MS_NODEV | (0 if jail.tools else kernel.MS_NOEXEC)
            kernel.mount("tmpfs", self.path, "tmpfs", flags, f"size={disk_mib}m,nr_inodes={disk.MAX_ENTRIES},mode=700")

    @property
    def scratch(self) -> str:
        """Path of the folder, as the session's programs see it."""
        return self.jail.scratch if self.jail.has_namespaces else self.path

    def attach(self, pid: int, own_mounts: int) -> None:
        """Mount the files for the waiting child `pid`. `own_mounts` is our mount namespace. Raises: OSError."""
        if not self.jail.has_namespaces:
            return
        copy = kernel.copy_of_mount(self.path)
        child_mounts = os.open(f"{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self.jail.proc)
        try:
            kernel.enter_mounts(child_mounts)
            try:
                kernel.attach_mount(copy, self.jail.scratch)
            finally:
                kernel.enter_mounts(own_mounts)
        finally:
            os.close(child_mounts)
            os.close(copy)

    def remove(self) -> None:
        """Remove the files."""
        if self.jail.has_namespaces:
            kernel.unmount(self.path)
        else:
            disk.empty(self.path)
        os.rmdir(self.path)

    def is_over(self) -> bool:
        """True if the files are over their limit. With namespaces the kernel keeps the limit, and this is False."""
        return not self.jail.has_namespaces and disk.is_over(self.path, self.disk_mib << 20)
