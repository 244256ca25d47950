# No libc: three pages, one exec of under a millisecond.
dsec-init_INTERNAL := 1
dsec-init_NOLIB := 1
dsec-init_CFLAGS := -Os -ffreestanding -fno-stack-protector -fno-pie \
	-fno-sanitize=all -fcf-protection=none -fno-stack-clash-protection \
	-fno-asynchronous-unwind-tables -U_FORTIFY_SOURCE \
	-ftrivial-auto-var-init=uninitialized
dsec-init_LDFLAGS := -nostdlib -static -Wl,-z,noseparate-code \
	-Wl,--build-id=none -Wl,-s -fno-sanitize=all
