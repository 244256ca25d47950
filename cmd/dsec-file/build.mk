# It runs inside sandboxes, from a sealed file, and must need nothing there.
dsec-file_INTERNAL := 1
dsec-file_STATIC := 1
