#!/bin/sh
# Runs the tests of packages on an emulated CPU with AVX-512, for machines without one.
#
#   tools/avx512-emulated.sh hadamard
#   tools/avx512-emulated.sh hadamard compiler
#
# QEMU's translator has no AVX-512; Bochs has, as a plain interpreter of some 40 million
# instructions a second. So the test binaries are linked statically, put into an initramfs with
# busybox, and booted in Bochs on a Debian kernel. The guest's serial port is the output. Booting
# takes about three minutes, and tests run some hundred times slower than natively. What passes
# here is proved as far as Bochs is right about the instructions; it says nothing about speed.
#
# Needs the Debian packages bochs, bochs-term, bochsbios, isolinux, syslinux-common, xorriso, cpio
# and busybox-static, and bsdutils for script(1). From the environment:
#
#   KERNEL      a kernel image; by default one is fetched with apt-get download
#   CPU         a CPU model of Bochs (default corei7_skylake_x; see bochs --help cpu)
#   TEST_ARGS   arguments for the test binaries, for example a filter
#   TIMEOUT     seconds before the emulator is stopped (default 3600)
#
# Exit code: 0 if every test binary succeeded on a guest with AVX-512, else 1.
set -eu

if [ $# -eq 0 ]; then
    sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2
    exit 2
fi

target=x86_64-unknown-linux-gnu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/root/proc" "$work/root/dev" "$work/root/tests" "$work/root/tmp" "$work/iso/isolinux"

# Test binaries, without the symbols: the guest's BIOS reads the disc slowly.
packages=
for package; do
    packages="$packages -p $package"
done
# shellcheck disable=SC2086 # a list of words
RUSTFLAGS="-C target-feature=+crt-static" cargo test --no-run --target $target $packages 2>"$work/cargo.log" ||
    { cat "$work/cargo.log" >&2; exit 1; }
sed -n 's/^ *Executable .*(\(.*\))$/\1/p' "$work/cargo.log" >"$work/binaries"
while read -r binary; do
    strip -o "$work/root/tests/$(basename "$binary")" "$binary"
done <"$work/binaries"

if [ -z "${KERNEL-}" ]; then
    package=$(apt-cache depends linux-image-amd64 | sed -n 's/^ *Depends: //p' | head -n 1)
    (cd "$work" && apt-get -q download "$package" >&2)
    dpkg-deb -x "$work/$package"_*.deb "$work/kernel"
    KERNEL=$(echo "$work"/kernel/boot/vmlinuz-*)
fi

# The first process of the guest: run each binary, say how it went, switch off. The pauses let the
# serial port drain.
cp "$(command -v busybox)" "$work/root/busybox"
cat >"$work/root/init" <<EOF
#!/busybox sh
/busybox mount -t proc proc /proc
/busybox mount -t devtmpfs dev /dev
echo "guest: \$(/busybox grep -m1 'model name' /proc/cpuinfo)"
echo "guest: \$(/busybox grep -m1 ^flags /proc/cpuinfo | /busybox grep -o 'avx512[a-z_0-9]*' | /busybox tr '\n' ' ')"
cd /tmp
for binary in /tests/*; do
    echo "guest: running \$binary"
    "\$binary" ${TEST_ARGS-} && echo "guest: passed \$binary" || echo "guest: FAILED \$binary"
done
echo "guest: done"
/busybox sleep 3
/busybox poweroff -f
EOF
chmod +x "$work/root/init"
(cd "$work/root" && find . | cpio -o -H newc --quiet | gzip -1) >"$work/iso/initrd"

# Bochs reports the size of the compacted XSAVE area wrongly. Linux then switches AVX off, unless
# told not to use that format.
cp "$KERNEL" "$work/iso/vmlinuz"
cp /usr/lib/ISOLINUX/isolinux.bin /usr/lib/syslinux/modules/bios/ldlinux.c32 "$work/iso/isolinux/"
cat >"$work/iso/isolinux/isolinux.cfg" <<'EOF'
DEFAULT linux
PROMPT 0
LABEL linux
  KERNEL /vmlinuz
  INITRD /initrd
  APPEND console=ttyS0 loglevel=4 panic=-1 nokaslr mitigations=off noxsaves clearcpuid=xsavec,xsaves tsc=reliable lpj=1000000 nosoftlockup
EOF
xorriso -as mkisofs -quiet -o "$work/boot.iso" -b isolinux/isolinux.bin -c isolinux/boot.cat \
    -no-emul-boot -boot-load-size 4 -boot-info-table "$work/iso" >&2

cat >"$work/bochsrc" <<EOF
config_interface: textconfig
display_library: term
plugin_ctrl: serial=1, biosdev=1
romimage: file=/usr/share/bochs/BIOS-bochs-latest
vgaromimage: file=/usr/share/bochs/VGABIOS-lgpl-latest
cpu: model=${CPU-corei7_skylake_x}, count=1, ips=100000000, ignore_bad_msrs=1
memory: guest=1024, host=1024
ata0: enabled=1, ioaddr1=0x1f0, ioaddr2=0x3f0, irq=14
ata0-master: type=cdrom, path=$work/boot.iso, status=inserted
boot: cdrom
com1: enabled=1, mode=file, dev=$work/serial
log: $work/bochs.log
panic: action=fatal
clock: sync=none
EOF
# Debian's Bochs starts in its debugger; `c` lets the guest run. Its screen needs a terminal.
echo c >"$work/debugger"
: >"$work/serial"
timeout "${TIMEOUT-3600}" script -qfc \
    "env TERM=xterm bochs -qf '$work/bochsrc' -q -rc '$work/debugger'" /dev/null \
    >"$work/screen" 2>&1 </dev/null &
tail -f --pid=$! "$work/serial" | sed -u 's/\r$//'

if ! grep -q 'guest: done' "$work/serial"; then
    echo "the guest did not finish; last lines of the emulator's log:" >&2
    tail -n 5 "$work/bochs.log" >&2
    exit 1
fi
grep -q 'guest: .*avx512f' "$work/serial" || { echo "the guest has no AVX-512" >&2; exit 1; }
! grep -q 'guest: FAILED' "$work/serial"
