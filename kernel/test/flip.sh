#!/bin/busybox sh
# Flips all of the series' switches at random while VMs start, work and end.
#
#	flip [SECONDS [SEED]]		default: 600 s, seed 1
#
# For a machine of kernel/test/run, best with the debug kernel; needs `tandem-lab` there. Three VMs of 4 vCPUs
# (spin locks, a barrier that halts, computing) run for a few seconds each and are started again, concurrently
# with the flush test. The module's parameters and the files of single VMs are set to valid and sometimes invalid
# values, with up to 50 ms in between. The kernel's complaints are in dmesg; this script only prints a summary.
# It counts VMs that end with an error, and shows the last error.
seconds=${1:-600} seed=${2:-1}
parameters=/sys/module/kvm/parameters

again() {
	name=$1
	shift
	n=0 bad=0
	while [ ! -e /tmp/over ]; do
		n=$((n + 1))
		"$@" >"/tmp/$name.out" 2>&1 || { bad=$((bad + 1)); cp "/tmp/$name.out" "/tmp/$name.bad"; }
	done
	echo "flip: $name: $n runs, $bad with an error"
	[ -e "/tmp/$name.bad" ] && tail -n 3 "/tmp/$name.bad"
}

# 3: the hypercall was switched off meanwhile.
flushes() {
	flush 5 500 "$seed"
	status=$?
	[ $status = 0 ] || [ $status = 3 ]
}

# Prints an endless list of "vm|all FILE VALUE MICROSECONDS".
choices() {
	awk -v seed="$seed" 'BEGIN {
		srand(seed)
		n = split("aple hvs yield_lag_credit fast_reactivation pv_flush_hypercall" \
			" aple_initial aple_lower aple_upper aple_step aple_epoch_exits yield_helped_ns", file, " ")
		for (;;) {
			i = int(rand() * (rand() < 0.8 ? 5 : n)) + 1
			own = i <= 5 && rand() < 0.5
			if (i == 2)
				value = int(rand() * 6) - own
			else if (i <= 5)
				value = int(rand() * (2 + own)) - own
			else {
				value = 1
				for (k = int(rand() * 20); k > 0; k--)
					value *= 2
				value -= rand() < 0.5
			}
			print (own ? "vm" : "all"), file[i], value, int(rand() * 50000)
		}
	}'
}

rm -f /tmp/over
again spinlock tandem-lab vm run --name s --workload spinlock --vcpus 4 --ring 0 --backend kvm --seconds 7 &
again barrier tandem-lab vm run --name b --workload barrier --vcpus 4 --ring 0 --backend kvm --seconds 5 --set wait=block &
again burn tandem-lab vm run --name c --workload burn --vcpus 4 --ring 0 --backend kvm --seconds 3 &
again flush flushes &

end=$(($(cut -d. -f1 /proc/uptime) + seconds))
choices | {
	flips=0 refused=0
	while [ "$(cut -d. -f1 /proc/uptime)" -lt "$end" ] && read -r whose file value pause; do
		if [ "$whose" = all ]; then
			echo "$value" 2>/dev/null >"$parameters/$file" || refused=$((refused + 1))
		else
			for vm in /sys/kernel/debug/kvm/*-*; do
				echo "$value" 2>/dev/null >"$vm/$file" || refused=$((refused + 1))
			done
		fi
		flips=$((flips + 1))
		usleep "$pause"
	done
	echo "flip: $flips flips in $seconds s, seed $seed; $refused refused (values that make no sense, VMs that were gone)"
}
touch /tmp/over
wait
