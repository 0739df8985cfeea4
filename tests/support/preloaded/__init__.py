"""Processes of the product that start as copies of one that has imported torch already.

An engine's start is nine tenths imports: 1.7 s of a core, for each core, rank and server of
hundreds of tests. `starts` makes `subprocess.Popen` ask a `zygote` for those programs: a process
that has imported them and copies itself. The copy is a child of the process that asked, with the
command line, environment, files, limits and exit code of a program that was started anew; its own
children are copies too. A start with anything that a copy could not have is a plain one. Tests
about the start itself have the mark `fresh_processes`, as have those of `make test-long`.
"""
