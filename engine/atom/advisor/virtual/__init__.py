"""Virtual engines: the real pipeline over devices, copies and disks that only take time."""
