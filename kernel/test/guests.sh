#!/bin/busybox sh
# Linux in VMs, under one load, with the series' switches set one way after the other.
#
#	guests LOAD SECONDS VMS VCPUS NAME[:PARAMETER=VALUE,...] ...
#
# For a machine of kernel/test/run with QEMU in it (GUESTS=1). VMS VMs of VCPUS vCPUs each boot the machine's own
# kernel, without paravirtual spin locks, and run LOAD (alloc, messaging, files) with as many threads as vCPUs, and
# never stop. For each NAME the parameters of the module kvm are set, after 0.2 s counters are read, and
# again SECONDS later. A line for each VM: its rounds per second of the time that it saw pass itself, and
# the counters' growth.
load=$1 seconds=$2 vms=$3 vcpus=$4
shift 4
parameters=/sys/module/kvm/parameters
switches="aple hvs yield_lag_credit fast_reactivation pv_flush_hypercall"
counters="ple_exits yields_directed yields_helped exits halt_exits tlb_flush_hypercalls aple_threshold"

# A guest looks for the hypercall when it boots.
case "$*" in
*pv_flush_hypercall=1*) echo 1 >$parameters/pv_flush_hypercall || exit 1 ;;
esac

# With PVH and a clock from KVM nothing else is asked of the virtual machine.
i=0
while [ $i -lt "$vms" ]; do
	rm -f "/tmp/guest$i"
	qemu-system-x86_64 -L /usr/share/qemu -M microvm,pit=off,rtc=off -accel kvm -cpu host,migratable=no \
		-smp "$vcpus" -m 96 -nodefaults -no-user-config -display none -no-reboot -kernel /guest/bzimage \
		-initrd /guest/initrd -append "console=ttyS0 quiet nopvspin panic=-1 rdinit=/load -- $load $vcpus" \
		-serial "file:/tmp/guest$i" >"/tmp/qemu$i" 2>&1 &
	eval "pid$i=$!"
	i=$((i + 1))
done

# Where it counts.
threshold() {
	[ "$(cat $parameters/aple 2>/dev/null)" != 1 ] || echo ", threshold $1"
}

# The last complete line of guest $1: "TIME COUNT".
last() {
	[ -e "/tmp/guest$1" ] || return
	tr -d '\r' <"/tmp/guest$1" | grep -E '^load: [0-9a-f]+ [0-9a-f]+ [.]$' | tail -n 1 | cut -d' ' -f2,3
}

value() {
	cat /sys/kernel/debug/kvm/"$1"-*/"$2" 2>/dev/null || echo 0
}

i=0
while [ $i -lt "$vms" ]; do
	waited=0
	until [ -n "$(last $i)" ]; do
		eval "kill -0 \$pid$i" 2>/dev/null && [ $waited -lt 3000 ] || {
			echo "guests: guest $i does not work: $(tail -n 3 /tmp/qemu$i /tmp/guest$i)"
			exit 1
		}
		sleep 1
		waited=$((waited + 1))
	done
	i=$((i + 1))
done
echo "guests: $vms VMs of $vcpus vCPUs work ($load) after $(cut -d' ' -f1 /proc/uptime) s"

snapshot() {
	i=0
	while [ $i -lt "$vms" ]; do
		eval "pid=\$pid$i"
		line=$(last $i)
		for counter in $counters; do
			line="$line $(value "$pid" "$counter")"
		done
		eval "$1$i='$line'"
		i=$((i + 1))
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
	i=0
	while [ $i -lt "$vms" ]; do
		eval "set -- \$a$i"
		t=$((0x$1)) n=$((0x$2)) x=$3 y=$4 h=$5 e=$6 l=$7 f=$8
		eval "set -- \$b$i"
		t=$((0x$1 - t)) n=$((0x$2 - n))
		[ $t -gt 0 ] || t=1
		echo "guests: $name: VM $i: $((n * 1000000 / t)) rounds/s in $((t / 1000)) ms, $(($3 - x)) PLE exits," \
			"$(($4 - y)) yields, $(($5 - h)) helped, $(($6 - e)) exits, $(($7 - l)) halts," \
			"$(($8 - f)) flushes by hypercall$(threshold "$9")"
		i=$((i + 1))
	done
done
snapshot b
i=0
while [ $i -lt "$vms" ]; do
	eval "set -- \$b$i"
	echo "guests: in all: VM $i: $((0x$2)) rounds, $3 PLE exits, $8 flushes by hypercall"
	eval "kill \$pid$i"
	i=$((i + 1))
done
wait
