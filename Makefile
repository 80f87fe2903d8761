# Thin: each target calls a script or cargo. What a script lacks, it installs (scripts/install-deps).

PREFIX ?= /usr/local
DESTDIR ?=
# The daemon looks there whatever PREFIX is.
SYSCONFDIR ?= /etc
UNITDIR ?= $(PREFIX)/lib/systemd/system
CARGO_TARGET_DIR ?= target
LIBDIR ?= $(PREFIX)/lib
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
# That of the release: the pages of the manual carry it.
DATE := $(shell sed -n 's/^\#\# [0-9.]* - //p' CHANGELOG.md | head -1)
export CARGO_TARGET_DIR
# What is installed: not the laboratory, nor what only tests and chores need.
PRODUCT := --workspace $(addprefix --exclude=,megapage-lab megapage-simulate megapage-fuzzing megapage-testing xtask)

.PHONY: help all build build-arm64 check test test-vm test-harm loom soak fuzz demo lab bench bench-programs results results-large install uninstall packages image book clean

.DEFAULT_GOAL := all

help: ## this list
	@sed -n 's/^\([a-z0-9-]*\):[^#]*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r target what; do printf '  make %-15s %s\n' "$$target" "$$what"; done

all: build

build: ## the program and its libraries, to target/release
	scripts/install-deps build
	cargo build --release --locked $(PRODUCT)

# The same for arm64, on a machine of another architecture: to $(CARGO_TARGET_DIR)/aarch64-unknown-linux-gnu/release.
build-arm64: ## the same for arm64
	scripts/build-arm64 build --release --locked

# Style, lints, the invariants of ARCHITECTURE.md, and the tests that need neither root nor packages.
check: ## style, lints, invariants, unit tests: before each commit
	scripts/install-deps build
	scripts/lint
	"$$(scripts/tool cargo-nextest)" nextest run --locked --lib --bins

# Everything, on real programs: closes with "N passed, N failed, N skipped".
test: ## everything, on real programs and in virtual machines
	scripts/test

# Some eighty programs in adverse environments, plain and under `megapage run`: every difference is reported. Goes on where it
# stopped. HARM_ARGS takes the driver's options: --only CASE, --environment NAME, --again, --matrix.
test-harm: ## programs in adverse environments, plain and under run (hours); as root
	scripts/install-deps harm
	cargo build --release --locked -p megapage-cli -p megapage-preload -p megapage-text
	tests/harm/driver.py --megapage $(CARGO_TARGET_DIR)/release/megapage $(HARM_ARGS)

# What threads share inside malloc (locks, chunks, spans, the ledger), in every order of their accesses that the memory
# model allows. A build of its own; about a minute.
loom: ## the locks and tables inside malloc, in every order of memory accesses
	RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=$(CARGO_TARGET_DIR)/loom \
		cargo test --locked -p megapage-memory --test loom

# Every case of tests/vm on Linux 5.10, 6.1, 6.12 and 7.x, x86-64 and arm64, in virtual machines, against the kernel's own
# values; closes as `make test` does. VM_ARGS takes the driver's options: --resume, --only CASE, --kernel SERIES, --matrix.
# Where arm64 cannot be built, the script says why, and the driver skips its cases.
test-vm: ## every case on every kernel, in virtual machines (hours)
	scripts/install-deps build
	scripts/install-deps vm-arm64
	cargo build --release --locked
	[ "$$(uname -m)" = aarch64 ] || scripts/build-arm64 build --release --locked || true
	tests/vm/driver.py --megapage $(CARGO_TARGET_DIR)/release/megapage $(VM_ARGS)

# Integrity under stress: memory promoted and recovered as fast as the kernel can, every byte checked. Ten minutes, or
# as many seconds as MEGAPAGE_SOAK_SECONDS says; a minute of it is part of `make test`. Needs root.
soak: ## integrity under stress, ten minutes; as root
	scripts/install-deps test
	MEGAPAGE_SOAK_SECONDS=$${MEGAPAGE_SOAK_SECONDS:-600} \
		scripts/with-usual-settings cargo test --release --locked -p megapage-act --test it soak:: -- --nocapture
	MEGAPAGE_SOAK_SECONDS=$${MEGAPAGE_SOAK_SECONDS:-300} \
		scripts/with-usual-settings cargo test --release --locked -p megapage-cli --test it daemon_soak:: -- --nocapture
	MEGAPAGE_SOAK=1 scripts/with-usual-settings cargo test --release --locked -p megapage-segment --test it kill::nothing_is_lost -- --nocapture
	cargo build --release --locked $(PRODUCT)
	MEGAPAGE_SOAK=1 scripts/with-usual-settings tests/programs/driver.py --only fork-threads --megapage $(CARGO_TARGET_DIR)/release/megapage

# Every parser and protocol with inputs that libFuzzer makes up, for SECONDS each (60 without it); TARGET=x for one. Needs a
# nightly compiler and cargo-fuzz.
fuzz: ## every parser and protocol; SECONDS, TARGET
	scripts/install-deps build
	SECONDS_EACH="$(SECONDS)" TARGET="$(TARGET)" SANITIZER="$(SANITIZER)" scripts/fuzz

# The main job on real input: a program on huge pages, with proof, compared with 4 KiB pages.
demo: ## a program on huge pages, with proof
	scripts/demo

# The experiments that judge megapage itself (docs/lab.md): not installed.
lab: build
	cargo build --release --locked -p megapage-lab

# The benches against every peer, what is observed against what is, code on huge pages, memory that is kept, and forks;
# two hours and a half with all peers. docs/lab.md has the benches of the daemon; `make results` and `make results-large`
# measure all benches.
bench: lab ## the benches against every peer (over two hours)
	$(CARGO_TARGET_DIR)/release/megapage-lab install
	$(CARGO_TARGET_DIR)/release/megapage-lab access --save bench/results/access.json
	$(CARGO_TARGET_DIR)/release/megapage-lab retrieval --save bench/results/retrieval.json
	$(CARGO_TARGET_DIR)/release/megapage-lab observe --save bench/results/observe.json
	$(CARGO_TARGET_DIR)/release/megapage-lab text --install --save bench/results/text.json
	$(CARGO_TARGET_DIR)/release/megapage-lab restart --install --save bench/results/restart.json
	$(CARGO_TARGET_DIR)/release/megapage-lab malloc --install --save bench/results/malloc.json
	$(CARGO_TARGET_DIR)/release/megapage-lab fault --save bench/results/fault.json
	$(CARGO_TARGET_DIR)/release/megapage-lab fork --install --save bench/results/fork.json
	$(CARGO_TARGET_DIR)/release/megapage-lab snapshot --install --save bench/results/snapshot.json

# Some fifty real programs in every way to huge pages (bench/programs/README.md); over an hour, on a quiet machine.
# BENCH_ARGS takes the driver's options: --only CASE,..., --ways WAY,..., --rounds N.
bench-programs: build ## some fifty real programs in every way to huge pages (over an hour)
	bench/programs/install.py
	bench/programs/driver.py --megapage $(CARGO_TARGET_DIR)/release/megapage --save bench/results/programs.json \
		--table docs/programs-bench.md $(BENCH_ARGS)

# The results that fit into three hours, of this build and machine; as root. Results of the same build are skipped, so that
# the same command goes on after a stop or a failure. FORCE=1 measures all, ONLY=NAME,... these. bench/results.py --list
# shows the steps and their times.
# A peer that cannot be installed is named in the results.
results: lab ## the results of one build on one machine; resumable (three hours); FORCE, ONLY
	-$(CARGO_TARGET_DIR)/release/megapage-lab install
	-bench/programs/install.py
	bench/results.py $(if $(FORCE),--force) $(if $(ONLY),--only $(ONLY)) $(RESULTS_ARGS)

# The other results, by the same recipe: every program in every way, large ones too, and the long experiments. A stopped
# step goes on run by run.
results-large: RESULTS_ARGS = --large
results-large: results ## the results that `make results` leaves out; resumable (a day); FORCE, ONLY

# The program and its libraries (the library for C with header and pkg-config file, Python's
# package), manual pages, completions for bash, zsh and fish, the daemon's unit, its configuration (one that is there is kept),
# and dist/ for monitoring. GENERATOR writes pages and completions: the megapage of this machine, after a build for another.
GENERATOR ?= $(CARGO_TARGET_DIR)/release/megapage
SHARE = $(DESTDIR)$(PREFIX)/share
# What programs have mapped is replaced by rename: they keep the former file, and a start meanwhile finds the one or the other.
in_place = install -D -m 755 $(CARGO_TARGET_DIR)/release/$(1) $(DESTDIR)$(2).new && mv -f $(DESTDIR)$(2).new $(DESTDIR)$(2)
install:
	$(call in_place,megapage,$(PREFIX)/bin/megapage)
	$(call in_place,libmegapage.so,$(PREFIX)/lib/megapage/libmegapage.so)
	$(call in_place,libmegapage_text.so,$(PREFIX)/lib/megapage/libmegapage_text.so)
	sed 's|@PREFIX@|$(PREFIX)|' dist/systemd/megapage.service | install -D -m 644 /dev/stdin $(DESTDIR)$(UNITDIR)/megapage.service
	if [ -z "$(DESTDIR)" ] && ! printf '6.7\n%s\n' "$$(uname -r)" | sort -VC; then install -D -m 644 dist/systemd/before-6.7.conf $(UNITDIR)/megapage.service.d/before-6.7.conf; fi
	sed 's|@PREFIX@|$(PREFIX)|' dist/systemd/megapage-prime@.service | install -D -m 644 /dev/stdin $(DESTDIR)$(UNITDIR)/megapage-prime@.service
	install -D -m 644 -t $(DESTDIR)$(UNITDIR) dist/systemd/megapage-prime@.timer
	sed 's|@PREFIX@|$(PREFIX)|' dist/systemd/megapage-record.service | install -D -m 644 /dev/stdin $(DESTDIR)$(UNITDIR)/megapage-record.service
	$(call in_place,libmegapage_c.so,$(LIBDIR)/libmegapage_c.so.0)
	ln -sf libmegapage_c.so.0 $(DESTDIR)$(LIBDIR)/libmegapage_c.so
	install -D -m 644 include/megapage.h $(DESTDIR)$(PREFIX)/include/megapage.h
	sed 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(LIBDIR)|; s|@VERSION@|$(VERSION)|' dist/megapage/megapage.pc.in | install -D -m 644 /dev/stdin $(DESTDIR)$(LIBDIR)/pkgconfig/megapage.pc
	install -D -m 644 -t $(SHARE)/megapage/python/megapage python/megapage/*.py python/megapage/py.typed
	install -D -m 644 -t $(SHARE)/megapage/python python/pyproject.toml python/setup.py
	$(GENERATOR) generate $(SHARE) --date "$(DATE)"
	[ -e $(DESTDIR)$(SYSCONFDIR)/megapage/daemon.toml ] || install -D -m 644 dist/megapage/daemon.toml $(DESTDIR)$(SYSCONFDIR)/megapage/daemon.toml
	install -D -m 644 -t $(SHARE)/megapage dist/megapage/daemon.toml dist/prometheus/alerts.yml dist/prometheus/scrape.yml dist/grafana/megapage.json dist/systemd/before-6.7.conf

# The configuration in SYSCONFDIR stays. Services that are enabled are taken off first: their drop-ins name what is removed.
uninstall:
	if [ -z "$(DESTDIR)" ] && [ -x $(PREFIX)/bin/megapage ]; then $(PREFIX)/bin/megapage disable --all; fi
	rm -f $(DESTDIR)$(PREFIX)/bin/megapage $(DESTDIR)$(PREFIX)/lib/megapage/libmegapage.so $(DESTDIR)$(PREFIX)/lib/megapage/libmegapage_text.so $(DESTDIR)$(UNITDIR)/megapage.service
	rm -f $(DESTDIR)$(UNITDIR)/megapage-prime@.service $(DESTDIR)$(UNITDIR)/megapage-prime@.timer $(DESTDIR)$(UNITDIR)/megapage-record.service $(DESTDIR)$(UNITDIR)/megapage.service.d/before-6.7.conf
	rm -f $(DESTDIR)$(LIBDIR)/libmegapage_c.so $(DESTDIR)$(LIBDIR)/libmegapage_c.so.0 $(DESTDIR)$(PREFIX)/include/megapage.h $(DESTDIR)$(LIBDIR)/pkgconfig/megapage.pc
	rm -f $(SHARE)/man/man1/megapage.1 $(SHARE)/man/man1/megapage-*.1 $(SHARE)/bash-completion/completions/megapage $(SHARE)/zsh/site-functions/_megapage $(SHARE)/fish/vendor_completions.d/megapage.fish
	rm -rf $(SHARE)/megapage
	-rmdir --ignore-fail-on-non-empty $(DESTDIR)$(PREFIX)/lib/megapage $(DESTDIR)$(UNITDIR)/megapage.service.d 2>/dev/null

# What a release has: .deb and .rpm, a tarball with a static program, and a wheel, of what `make build` has left; to
# $(CARGO_TARGET_DIR)/packages. PACKAGES chooses: deb, rpm, tarball, wheel.
packages: build ## .deb, .rpm, static tarball, Python wheel
	scripts/packages $(PACKAGES)

# The manual, docs/, to $(CARGO_TARGET_DIR)/book/html.
book: ## the manual as a book (mdBook), its links checked
	scripts/book

image: build ## the container image (docs/containers.md)
	scripts/image

clean: ## what the build has made
	cargo clean
