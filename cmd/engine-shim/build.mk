# Preloaded into the checkpoint engine where root lacks CAP_SYS_RESOURCE; see
# shim.c.  It runs beside another C library than ours: no object of ours goes in.
INSTALL_LIBEXEC += $(LIBEXEC)/engine-shim.so

$(LIBEXEC)/engine-shim.so: cmd/engine-shim/shim.c lib/sys/raw.h cmd/engine-shim/build.mk
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) -std=gnu17 -Os $(WARN) -fPIC -ffreestanding \
		-fno-stack-protector -fno-builtin -U_FORTIFY_SOURCE \
		-fvisibility=hidden -shared -nostdlib -Wl,-z,noexecstack \
		-Wl,-z,relro,-z,now -Wl,--build-id=none -Wl,-s -o $@ $<
