# SPDX-License-Identifier: Apache-2.0
#
# make                 the programs, into bin/ and libexec/dsec/
# make deps            install what building, testing and running needs (apt)
# make quickstart      deps, build, and a real job in sandboxes
# make check           unit, command-line and system tests (as root)
# make check-big       slow suites; check-vm: the suite in a full guest
# make check-ckpt      the long ones of checkpoints; check-rounds: over and over
# make check-net       network policy; check-serve: many machines, and the SDK
# make lint fmt        static checks; rewrite the formatting
# make bench fuzz man  ratios beside peers; fuzz targets; read the pages
# make install         DESTDIR=, PREFIX=/usr/local
# make new PROG=name   a new program with page and test
#
# SAN=address,undefined and VALGRIND=1 build into directories of their own.
# A directory under cmd/ is a program; cmd/NAME/build.mk may set for it
#   NAME_INTERNAL=1 (libexec), NAME_STATIC=1, NAME_CFLAGS, NAME_LDFLAGS,
#   NAME_LIBS, NAME_NOLIB=1 (links none of lib/),
# and add files that it makes in libexec to INSTALL_LIBEXEC, with their rule.

PREFIX ?= /usr/local
CC ?= gcc
MAKEFLAGS += --no-builtin-rules

ifneq ($(SAN),)
B := build/san
O := build/san/out
VARIANT_CFLAGS := -fsanitize=$(SAN) -fno-omit-frame-pointer -O1
VARIANT_LDFLAGS := -fsanitize=$(SAN)
STATIC_OK :=
else ifneq ($(VALGRIND),)
B := build/valgrind
O := build/valgrind/out
VARIANT_CFLAGS := -O1
STATIC_OK :=
else
B := build/default
O := .
VARIANT_CFLAGS := -O2
STATIC_OK := yes
endif
BIN := $(O)/bin
LIBEXEC := $(O)/libexec/dsec

# Hardening flags are tried, per compiler, once.
try = $(shell echo 'int main(void){return 0;}' | \
	$(CC) -Werror $(1) -O2 -x c -o /dev/null - 2>/dev/null && echo '$(1)')
ifeq ($(wildcard $(B)/flags.mk),)
HARDEN := $(call try,-fstack-protector-strong) \
	$(call try,-fstack-clash-protection) $(call try,-fcf-protection) \
	$(call try,-ftrivial-auto-var-init=zero)
ifeq ($(SAN),)
HARDEN += -U_FORTIFY_SOURCE $(or $(call try,-D_FORTIFY_SOURCE=3),-D_FORTIFY_SOURCE=2)
endif
$(shell mkdir -p $(B) && echo 'HARDEN := $(HARDEN)' > $(B)/flags.mk)
else
include $(B)/flags.mk
endif

WARN := -Wall -Wextra -Wshadow -Wmissing-prototypes -Wstrict-prototypes -Wvla \
	-Wpointer-arith -Wwrite-strings -Wformat=2 -Wundef \
	-Wno-format-nonliteral $(WERROR)
CPPFLAGS := -D_GNU_SOURCE -iquote lib
CFLAGS := -std=gnu17 -g $(VARIANT_CFLAGS) $(WARN) $(HARDEN) -fPIE \
	-ffunction-sections -fdata-sections
LDFLAGS := $(VARIANT_LDFLAGS) -Wl,-z,relro,-z,now,-z,noexecstack \
	-Wl,--gc-sections -Wl,--as-needed
LIBS := -ljansson -lmd -lm
TEST_LIBS := -larchive -lz -lssl -lcrypto -lnftnl -lmnl

LIB_SRC := $(sort $(wildcard lib/*/*.c))
LIB_OBJ := $(LIB_SRC:%.c=$(B)/obj/%.o)
PROGS := $(sort $(notdir $(patsubst %/,%,$(dir $(wildcard cmd/*/main.c)))))
-include $(wildcard cmd/*/build.mk)
INTERNAL := $(foreach p,$(PROGS),$(if $($(p)_INTERNAL),$(p)))
PUBLIC := $(filter-out $(INTERNAL),$(PROGS))
TARGETS := $(PUBLIC:%=$(BIN)/%) $(INTERNAL:%=$(LIBEXEC)/%) $(INSTALL_LIBEXEC)

.PHONY: all deps quickstart check check-base check-quick check-unit check-big check-ckpt check-net check-serve check-rounds check-vm lint fmt \
	fmt-check bench fuzz man install new clean tests
.DEFAULT_GOAL := all
.SECONDARY:
all: $(TARGETS)

$(B)/obj/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) $(OBJ_CFLAGS) -MMD -MP -c -o $@ $<

$(B)/libdsec.a: $(LIB_OBJ)
	@rm -f $@
	$(AR) rcs $@ $^

# $(1): program, $(2): where it goes
define program
$(1)_SRC := $$(sort $$(wildcard cmd/$(1)/*.c))
$(1)_OBJ := $$($(1)_SRC:%.c=$$(B)/obj/%.o)
$$($(1)_OBJ): OBJ_CFLAGS = $$($(1)_CFLAGS)
$(2)/$(1): $$($(1)_OBJ) $$(if $$($(1)_NOLIB),,$$(B)/libdsec.a) $$(wildcard cmd/$(1)/build.mk)
	@mkdir -p $$(@D)
	$$(CC) $$(CFLAGS) $$($(1)_CFLAGS) $$(LDFLAGS) \
		$$(if $$($(1)_STATIC),$$(if $$(STATIC_OK),-static,-pie),$$(if $$($(1)_NOLIB),,-pie)) \
		$$($(1)_LDFLAGS) -o $$@ $$($(1)_OBJ) \
		$$(if $$($(1)_NOLIB),,$$(B)/libdsec.a $$($(1)_LIBS) $$(LIBS))
endef
$(foreach p,$(PUBLIC),$(eval $(call program,$(p),$(BIN))))
$(foreach p,$(INTERNAL),$(eval $(call program,$(p),$(LIBEXEC))))

UNIT := $(patsubst tests/unit/%.c,$(B)/unit/%,$(sort $(wildcard tests/unit/*.c)))
$(B)/unit/%: $(B)/obj/tests/unit/%.o $(B)/libdsec.a
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LDFLAGS) -pie -o $@ $< $(B)/libdsec.a $(TEST_LIBS) $(LIBS)

# Fuzz targets with a main that replays files; tests/fuzz/run builds the others.
FUZZ := $(patsubst tests/fuzz/fuzz_%.c,$(B)/fuzz/%,$(sort $(wildcard tests/fuzz/fuzz_*.c)))
$(B)/fuzz/%: $(B)/obj/tests/fuzz/fuzz_%.o $(B)/obj/tests/fuzz/replay.o $(B)/libdsec.a
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LDFLAGS) -pie -o $@ $^ $(TEST_LIBS) $(LIBS)

# Programs that system tests run inside a sandbox: static, no lib.
PRELOAD := $(wildcard tests/sys/*_preload.c)
HELPERS := $(patsubst tests/sys/%.c,$(B)/helpers/%,$(filter-out $(PRELOAD),$(sort $(wildcard tests/sys/*.c)))) \
	$(PRELOAD:tests/sys/%.c=$(B)/helpers/%.so)
$(B)/helpers/%.so: tests/sys/%.c
	@mkdir -p $(@D)
	$(CC) -D_GNU_SOURCE -std=gnu17 -O2 -Wall -Wextra -fPIC -shared -o $@ $<

$(B)/helpers/%: tests/sys/%.c $(wildcard tests/sys/*.h)
	@mkdir -p $(@D)
	$(CC) -D_GNU_SOURCE -std=gnu17 -O2 -Wall -Wextra -static -o $@ $<

BENCH := $(patsubst tests/bench/%.c,$(B)/bench/%,$(wildcard tests/bench/*.c))
# Those that speak to netfilter: its libraries have no static form.
$(B)/bench/net_%: tests/bench/net_%.c $(B)/libdsec.a
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) $(LDFLAGS) -pie -o $@ $< $(B)/libdsec.a \
		$(TEST_LIBS) $(LIBS)

$(B)/bench/%: tests/bench/%.c $(B)/libdsec.a
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) $(LDFLAGS) \
		$(if $(STATIC_OK),-static,-pie) -o $@ $< $(B)/libdsec.a \
		-lseccomp $(LIBS)

tests: all $(UNIT) $(HELPERS) $(BENCH) $(FUZZ)

# Those of checkpoints, of network policy and of the daemons are suites of
# their own too.
CKPT_TESTS := $(sort $(filter $(addprefix tests/sys/,box-disk.t ckpt-%.t \
	engine-%.t fork%.t matrix.t pause-many.t pause-readme.t reboot.t \
	reclaim.t restore%.t),$(wildcard tests/sys/*.t)))
NET_TESTS := $(sort $(wildcard tests/sys/net-*.t))
SERVE_TESTS := $(sort $(wildcard tests/sys/serve-*.t tests/sys/sdk-*.t))
# They wait more than they work: two for each processor, the longest first.
TEST_JOBS ?= $(shell n=$$(nproc); echo $$((n > 4 ? 8 : 2 * n)))
run_tests = TEST_JOBS=$(TEST_JOBS) BUILD=$(B) BIN=$(abspath $(BIN)) tests/run

check: tests
	$(run_tests) $(UNIT) $(SERVE_TESTS) $(sort $(wildcard tests/cli/*.t)) \
		$(filter-out $(SERVE_TESTS),$(sort $(wildcard tests/sys/*.t)))

check-base: tests
	$(run_tests) $(UNIT) $(sort $(wildcard tests/cli/*.t)) $(filter-out \
		$(CKPT_TESTS) $(NET_TESTS) $(SERVE_TESTS), \
		$(sort $(wildcard tests/sys/*.t)))

check-ckpt: tests
	$(run_tests) $(CKPT_TESTS)

check-net: tests
	$(run_tests) $(NET_TESTS)

check-serve: tests
	$(run_tests) $(SERVE_TESTS)

# Without the sandboxes: what a sanitizer or valgrind build can run.
check-quick: tests
	BUILD=$(B) BIN=$(abspath $(BIN)) tests/run $(UNIT) \
		$(sort $(wildcard tests/cli/*.t))

check-unit: $(UNIT)
	BUILD=$(B) tests/run $(UNIT)

check-big: tests
	BUILD=$(B) BIN=$(abspath $(BIN)) tests/run \
		$(sort $(wildcard tests/big/*.t))

check-rounds: tests
	BUILD=$(B) BIN=$(abspath $(BIN)) tests/run \
		$(sort $(wildcard tests/rounds/*.t))

check-vm: tests
	tests/vm/check-vm

# Without the engine all works but checkpoints and forks with memory, so that
# a machine without a Debian mirror still gets the rest; .ci/run wants it.
deps:
	share/deps/install
	@share/deps/engine || { echo "deps: NO CHECKPOINT ENGINE, see above;" \
		"pause to disk and fork with memory will be refused" >&2; }

quickstart:
	share/deps/install build run test
	$(MAKE) all
	share/quickstart

lint: all
	tests/lint/all

FMT_SRC = $(shell git ls-files --cached --others --exclude-standard '*.c' '*.h')
fmt:
	clang-format -i $(FMT_SRC)
fmt-check:
	clang-format --dry-run -Werror $(FMT_SRC)

bench: tests
	BUILD=$(B) BIN=$(abspath $(BIN)) tests/bench/run

FUZZ_SECONDS ?= 60
fuzz:
	tests/fuzz/run $(FUZZ_SECONDS)

man:
	@for p in cmd/*/*.[1-8]; do mandoc -T utf8 $$p | cat; done

install: all
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/libexec/dsec \
		$(DESTDIR)$(PREFIX)/share/man/man1 $(DESTDIR)$(PREFIX)/share/dsec \
		$(DESTDIR)$(PREFIX)/share/bash-completion/completions
	install -m 755 $(PUBLIC:%=$(BIN)/%) $(DESTDIR)$(PREFIX)/bin
	for p in $(INTERNAL); do install -m 755 $(LIBEXEC)/$$p \
		$(DESTDIR)$(PREFIX)/libexec/dsec/ || exit 1; done
	for f in $(INSTALL_LIBEXEC); do install -m 644 $$f \
		$(DESTDIR)$(PREFIX)/libexec/dsec/ || exit 1; done
	install -m 644 $(wildcard cmd/*/*.1) $(DESTDIR)$(PREFIX)/share/man/man1
	install -m 644 LICENSE *.md $(DESTDIR)$(PREFIX)/share/dsec
	install -d $(DESTDIR)$(PREFIX)/share/dsec/net
	install -m 644 share/net/*.json $(DESTDIR)$(PREFIX)/share/dsec/net
	install -d $(DESTDIR)$(PREFIX)/share/dsec/python/dsec \
		$(DESTDIR)$(PREFIX)/share/dsec/python/examples
	install -m 644 $(addprefix share/python/,pyproject.toml _build.py README.md) \
		$(DESTDIR)$(PREFIX)/share/dsec/python
	install -m 644 $(wildcard share/python/dsec/*.py) share/python/dsec/py.typed \
		$(DESTDIR)$(PREFIX)/share/dsec/python/dsec
	install -m 644 $(wildcard share/python/examples/*.py) \
		$(DESTDIR)$(PREFIX)/share/dsec/python/examples
	install -D -m 755 share/demo/cluster.py \
		$(DESTDIR)$(PREFIX)/share/dsec/demo/cluster.py
	install -m 644 share/demo/world.py $(DESTDIR)$(PREFIX)/share/dsec/demo
	install -m 644 share/completions/dsec \
		$(DESTDIR)$(PREFIX)/share/bash-completion/completions
	install -d $(DESTDIR)$(PREFIX)/lib/systemd/system
	for u in share/systemd/*.service share/systemd/*.timer; do \
		sed 's|/usr/local/bin/|$(PREFIX)/bin/|' $$u | install -m 644 \
		/dev/stdin $(DESTDIR)$(PREFIX)/lib/systemd/system/$${u##*/} || \
		exit 1; done

new:
	share/new-program $(PROG)

compile_commands.json:
	$(MAKE) clean && bear -- $(MAKE) tests

clean:
	rm -rf build bin libexec

-include $(shell find $(B)/obj -name '*.d' 2>/dev/null)
