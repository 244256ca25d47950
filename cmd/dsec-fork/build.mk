# Static, as dsec-run: each copy is made by a process of its own.
dsec-fork_STATIC := 1
