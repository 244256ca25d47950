# Compiles the profiles when they are built; nothing that runs links libseccomp.
dsec-seccomp_INTERNAL := 1
dsec-seccomp_LIBS := -lseccomp

PROFILES := $(patsubst share/profiles/%.json,%,$(wildcard share/profiles/*.json))
PROFILE_BPF := $(PROFILES:%=$(LIBEXEC)/%.bpf)
INSTALL_LIBEXEC += $(PROFILE_BPF)

$(LIBEXEC)/%.bpf: share/profiles/%.json share/profiles/syscalls $(LIBEXEC)/dsec-seccomp
	$(LIBEXEC)/dsec-seccomp $< $@
