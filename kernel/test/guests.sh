#!/bin/busybox sh
# Linux in VMs, under one load, with each setting of the series' switches in turn.
#
#	guests LOAD SECONDS VMS VCPUS NAME[:PARAMETER=VALUE,...] ...
#
# For a machine of kernel/test/run with QEMU in it (GUESTS=1). VMS VMs of VCPUS vCPUs each boot the machine's own
# kernel, without paravirtual spin locks, and run LOAD (alloc, messaging, files) without end, with as many threads as
# vCPUs. For each NAME the script sets the parameters of the module kvm, reads counters after 0.2 s, and again SECONDS
# later. It prints a line for each VM: its rounds per second of guest time, and the growth of the counters, or
# "not measured" if they cannot be read.
load=$1 seconds=$2 vcpus=$4
guests=$(seq 0 $(($3 - 1)))
shift 4
parameters=/sys/module/kvm/parameters
switches="aple hvs yield_lag_credit fast_reactivation pv_flush_hypercall"
counters="ple_exits yields_directed yields_helped exits halt_exits tlb_flush_hypercalls aple_threshold"

# A guest looks for the hypercall when it boots.
case "$*" in
*pv_flush_hypercall=1*) echo 1 >$parameters/pv_flush_hypercall || exit 1 ;;
esac

# KVM provides a clock and interrupts; the virtual machine needs nothing else.
for i in $guests; do
	rm -f "/tmp/guest$i"
	qemu-system-x86_64 -L /usr/share/qemu -M microvm,pit=off,rtc=off -accel kvm -cpu host,migratable=no \
		-smp "$vcpus" -m 96 -nodefaults -no-user-config -display none -no-reboot -kernel /guest/bzimage \
		-initrd /guest/initrd -append "console=ttyS0 quiet nopvspin panic=-1 rdinit=/load -- $load $vcpus" \
		-serial "file:/tmp/guest$i" >"/tmp/qemu$i" 2>&1 &
	eval "pid$i=$!"
done

# The APLE threshold, if APLE is on.
threshold() {
	[ "$(cat $parameters/aple 2>/dev/null)" != Y ] || echo ", threshold $1"
}

# The last complete line of guest $1, "TIME COUNT", or nothing.
last() {
	[ -e "/tmp/guest$1" ] || return
	tr -d '\r' <"/tmp/guest$1" | grep -E '^load: [0-9a-f]+ [0-9a-f]+ [.]$' | tail -n 1 | cut -d' ' -f2,3
}

# A counter of the VM of the process $1.
value() {
	cat /sys/kernel/debug/kvm/"$1"-*/"$2" 2>/dev/null || echo -
}

# By how much a counter has grown from $1 to $2.
grown() {
	case "$1 $2" in
	*-*) echo "not measured" ;;
	*) echo $(($2 - $1)) ;;
	esac
}

# Rounds per second from the time $1 and count $2 to the time $3 and count $4.
rate() {
	if [ "$1" = - ] || [ "$3" = - ] || [ "$1" = "$3" ]; then
		echo "rounds/s not measured"
	else
		echo "$(((0x$4 - 0x$2) * 1000000 / (0x$3 - 0x$1))) rounds/s in $(((0x$3 - 0x$1) / 1000)) ms"
	fi
}

for i in $guests; do
	waited=0
	until [ -n "$(last $i)" ]; do
		eval "kill -0 \$pid$i" 2>/dev/null && [ $waited -lt 3000 ] || {
			echo "guests: guest $i does not work: $(tail -n 3 /tmp/qemu$i /tmp/guest$i)"
			exit 1
		}
		sleep 1
		waited=$((waited + 1))
	done
done
echo "guests: $(echo "$guests" | wc -l) VMs of $vcpus vCPUs work ($load) after $(cut -d' ' -f1 /proc/uptime) s"

# Into the variables a0, a1, ... if $1 is a: time, count and counters of each guest.
snapshot() {
	for i in $guests; do
		eval "pid=\$pid$i"
		line=$(last "$i")
		[ -n "$line" ] || line="- -"
		for counter in $counters; do
			line="$line $(value "$pid" "$counter")"
		done
		eval "$1$i='$line'"
	done
}

for variant; do
	name=${variant%%:*} settings=${variant#"$name"}
	for switch in $switches; do
		echo 0 2>/dev/null >"$parameters/$switch"
	done
	for setting in $(echo "${settings#:}" | tr ',' ' '); do
		echo "${setting#*=}" >"$parameters/${setting%%=*}" || exit 1
	done
	sleep 0.2
	snapshot a
	sleep "$seconds"
	snapshot b
	for i in $guests; do
		eval "set -- \$a$i \$b$i"
		echo "guests: $name: VM $i: $(rate "$1" "$2" "${10}" "${11}"), $(grown "$3" "${12}") PLE exits," \
			"$(grown "$4" "${13}") yields, $(grown "$5" "${14}") helped, $(grown "$6" "${15}") exits," \
			"$(grown "$7" "${16}") halts, $(grown "$8" "${17}") flushes by hypercall$(threshold "${18}")"
	done
done
snapshot b
for i in $guests; do
	eval "set -- \$b$i"
	echo "guests: in all: VM $i: $((0x$2)) rounds, $3 PLE exits, $8 flushes by hypercall"
	eval "kill \$pid$i"
done
wait
