# It runs inside sandboxes, from a sealed file, and must need nothing there.
# That file is memory of each supervisor which needed it: no symbols.
dsec-file_INTERNAL := 1
dsec-file_STATIC := 1
dsec-file_LDFLAGS := -Wl,-s
