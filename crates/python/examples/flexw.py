"""FlexW in Python: a port of `crates/policy/src/flexw.rs`, as an example of a realistic policy.

Source: Rao & Zhou, "Towards Fair and Efficient SMP Virtual Machine Scheduling", PPoPP 2014, section 4.1, with the changes that
the essay of the Rust file explains. Names are the same as there. Times are ns within a period; weights are in the units of the host's knob.

It makes the same decisions as the Rust policy (a test of the wheel compares them), but it does not support hierarchies of cgroups and
quotas, which simulated hosts do not have.

    tandem_sched.run(scenario, policy=FlexW())
"""

import math
from types import SimpleNamespace

from tandem_sched.policy import set_weight

MAX_RELATIVE_ERROR = 1.0
MIN_ELASTICITY = 0.05
MAX_STEP = 2.5
ASLEEP = 0.005
BACKLOGGED = 0.9

#: The values that are averaged over periods.
AVERAGES = ("received", "charged", "could_run", "backlogged", "elasticity")


class FlexW:
    """Weights that give each VM its fair share. Call it once per period with an observation of the host."""

    def __init__(self, fair_window=10_000_000_000, gain=0.3, smoothing=0.3, dead_band=0.01, idle_tolerance=0.05, spread=100.0):
        self.fair_window, self.gain, self.smoothing = fair_window, gain, smoothing
        self.dead_band, self.idle_tolerance, self.spread = dead_band, idle_tolerance, spread
        self.vms, self.groups, self.window = {}, {}, 0

    def __call__(self, host):
        period = host["period"]
        self.observe(period, host["vms"], host["knobs"]["weight"])
        self.window += period
        window_over = self.window >= self.fair_window
        decisions, groups = [], {}
        sets = [union(vm["vcpus"]) for vm in host["vms"]]
        for indices, pcpus in components(sets):
            members = [host["vms"][at] for at in indices]
            group = self.group_state(period, pcpus, members, host["idle"])
            decisions += self.divide(period, members, group, window_over)
            groups[pcpus] = group
        self.groups = groups
        if window_over:
            self.window = 0
            for state in self.vms.values():
                state.least_backlog = 1.0
        return sorted(decisions, key=lambda decision: decision["target"]["vm"])

    def observe(self, period, vms, knob):
        """Updates the averages, and removes VMs that no longer exist."""
        seen, is_first = {}, not self.vms
        for vm in vms:
            now = first_state(period, vm)
            state = self.vms.get(vm["vm"])
            if state is None:
                state, state.comes = now, not is_first
            else:
                if state.could_run < ASLEEP * period:
                    # Averages from before a long sleep are meaningless.
                    state.age = 0
                    for name in AVERAGES:
                        setattr(state, name, 0.0)
                follow(state, now, self.smoothing)
                state.comes = False
            # Steps too small for the knob accumulate. A current value other than the requested one takes precedence.
            in_force = vm["in_force"]
            if in_force.get("rotating"):
                state.real_time = vm["weight"]
            elif written(knob, state.real_time) != in_force["weight"]:
                state.real_time = in_force["weight"]
            state.real_time = clamp(state.real_time, knob["least"], knob["most"])
            state.configured = vm["weight"]
            state.siblings = vm.get("siblings", 0)
            state.idle = in_force.get("idle", False)
            state.adjustable = not state.idle and not in_force.get("rotating")
            state.least_backlog = min(state.least_backlog, state.backlogged / period)
            seen[vm["vm"]] = state
        self.vms = seen

    def group_state(self, period, pcpus, members, idle):
        """Returns whether the group's pCPU time is used up, with hysteresis, because idle time is coarse."""
        received = total(self.vms[vm["vm"]].received for vm in members)
        idle_now = sum(idle.get(str(pcpu), 0) for pcpu in sorted(pcpus)) / period
        before = self.groups.get(pcpus)
        smoothed = idle_now if before is None else before.idle + self.smoothing * (idle_now - before.idle)
        tolerance = self.idle_tolerance * (2.0 if before is not None and before.saturated else 1.0)
        saturated = smoothed / len(pcpus) <= tolerance or received >= period * len(pcpus) * (1.0 - tolerance)
        return SimpleNamespace(idle=smoothed, saturated=saturated)

    def divide(self, period, members, group, window_over):
        """Returns one group's new weights."""
        members = [vm for vm in members if not self.vms[vm["vm"]].idle]
        claims = [claim(period, vm, self.vms[vm["vm"]]) for vm in members]
        shares = fair_shares(sum(one.received for one in claims), period, claims)
        wanted, active = [], {}
        for vm, fair in zip(members, shares):
            state = self.vms[vm["vm"]]
            account = assessment(fair, rounded(state.received) + rounded(state.charged))
            came = self.among_others(vm, members) if group.saturated else None
            if came is not None:
                weight, because = came, {"reason": "came"}
            else:
                weight, because = self.next_weight(period, state, account, group, window_over)
            if state.could_run >= ASLEEP * period:
                competes = abs(account.lag) > self.dead_band or state.backlogged >= BACKLOGGED * period
                own = active.setdefault(state.siblings, SimpleNamespace(at=[], held=False))
                if state.adjustable:
                    own.at.append(len(wanted))
                else:
                    own.held = own.held or competes
            wanted.append([vm["vm"], weight, because])
        for _, own in sorted(active.items()):
            self.keep_sum(wanted, own.at, own.held)
        decisions = []
        for vm, weight, because in wanted:
            state = self.vms[vm]
            changed = weight != state.real_time
            state.real_time = weight
            if changed:
                decisions.append(set_weight(vm, weight, because=because or {"reason": "keep-sum"}))
        return decisions

    def among_others(self, vm, members):
        """Returns the weight of a new VM: its configured weight times the geometric mean of real_time / configured on its pCPUs."""
        state = self.vms[vm["vm"]]
        if not (state.comes and state.adjustable):
            return None
        pcpus = union(vm["vcpus"])
        others = [self.vms[other["vm"]] for other in members if union(other["vcpus"]) & pcpus]
        ratios = [math.log(other.real_time / other.configured) for other in others if other.adjustable and not other.comes]
        return state.configured * math.exp(total(ratios) / len(ratios)) if ratios else None

    def next_weight(self, period, state, account, group, window_over):
        """Returns r_i for the next period, before `keep_sum`."""
        configured = state.configured
        if not state.adjustable:
            return state.real_time, None
        if not group.saturated:
            return configured, {"reason": "work-conserving", "idle": group.idle}
        if state.could_run < ASLEEP * period:
            return configured, {"reason": "asleep"}
        if window_over and state.least_backlog < BACKLOGGED and state.real_time > configured:
            return configured, {"reason": "fair-window"}
        if abs(account.lag) <= self.dead_band:
            return state.real_time, None
        because = {"reason": "lag", "lag": account.lag, "fair": account.fair / period, "received": account.received / period}
        return state.real_time * self.step(state, account), because

    def step(self, state, account):
        """Returns the factor by which r_i changes: g × error ÷ elasticity, symmetric for positive and negative lag."""
        fair, received = float(max(account.fair, 1)), float(max(account.received, 1))
        error = min(max(fair, received) / min(fair, received) - 1.0, MAX_RELATIVE_ERROR)
        factor = min(1.0 + self.gain * error / max(state.elasticity, MIN_ELASTICITY), MAX_STEP)
        return factor if received < fair else 1.0 / factor

    def keep_sum(self, wanted, active, held):
        """Scales the active VMs' weights so that their sum is Σ w_i again, unless the smallest would fall below its minimum."""
        configured = [self.vms[wanted[at][0]].configured for at in active]
        weights = [wanted[at][1] for at in active]
        moved = any(wanted[at][1] != self.vms[wanted[at][0]].real_time for at in active)
        if not moved or total(weights) <= 0.0:
            return
        least = min(weight / own for weight, own in zip(weights, configured))
        scale = 1.0 if held else max(total(configured) / total(weights), 1.0 / (self.spread * least))
        for at, own in zip(active, configured):
            wanted[at][1] = clamp(wanted[at][1] * scale, own / self.spread, own * self.spread)


# ---- VMs ----------------------------------------------------------------------------------------------------------------


def first_state(period, vm):
    times = [could_run(period, vcpu) for vcpu in vm["vcpus"]]
    runnable = sum(period if vm["in_force"].get("rotating") and time else time for time in times)
    return SimpleNamespace(
        real_time=vm["in_force"]["weight"],
        received=float(sum(vcpu["ran"] for vcpu in vm["vcpus"])),
        charged=float(vm.get("charged", 0)),
        could_run=float(runnable),
        backlogged=float(min(runnable, period)),
        elasticity=elasticity(period, vm),
        least_backlog=1.0,
        age=1,
    )


def could_run(period, vcpu):
    """Returns the runnable time of a vCPU. A wait over the whole period is not counted yet: kernels count a wait when it ends."""
    is_starved = vcpu["ran"] + vcpu["waited"] == 0 and vcpu["runnable"]
    return min(period if is_starved else vcpu["ran"] + vcpu["waited"], period)


def elasticity(period, vm):
    """e_i = Σ s_v × (waiting part of v) ÷ Σ s_v, with s_v the part of the period that v ran."""
    weighted = shares = 0.0
    for vcpu in vm["vcpus"]:
        share = vcpu["ran"] / period
        weighted += share * (max(could_run(period, vcpu) - vcpu["ran"], 0) / period)
        shares += share
    return weighted / shares if shares > 0.0 else 1.0


def follow(state, now, smoothing):
    """Moves each average towards the newest period. The first periods of a VM have equal weights."""
    alpha = max(smoothing, 1.0 / (state.age + 1))
    state.age += 1
    for name in AVERAGES:
        average = getattr(state, name)
        setattr(state, name, average + alpha * (getattr(now, name) - average))


# ---- fair shares --------------------------------------------------------------------------------------------------------


def claim(period, vm, state):
    reached = components([pcpus_of(vcpu["allowed"]) for vcpu in vm["vcpus"]])
    usable = sum(min(len(indices), len(pcpus)) for indices, pcpus in reached)
    return SimpleNamespace(
        weight=state.configured,
        peak=period * usable,
        received=rounded(state.received),
        could_run=rounded(state.could_run),
        backlogged=rounded(state.backlogged),
    )


def entitled(claim, level, period):
    """Returns the GPS service at a level, which is in ns of CPU time per unit of weight."""
    x = min(level * claim.weight, float(claim.peak))
    if claim.received >= x:
        return x
    part = min(claim.backlogged, period) / period
    return max(min(part * x, float(claim.could_run)), float(claim.received))


def fair_shares(capacity, period, claims):
    """Divides a capacity by water-filling; bisection finds the level at which the entitlements use it up."""
    if not claims:
        return []

    def used(level):
        return total(entitled(one, level, period) for one in claims)

    low, high = 0.0, max(one.peak for one in claims) / min(one.weight for one in claims)
    if used(high) > capacity:
        for _ in range(100):
            middle = low + (high - low) / 2.0
            low, high = (low, middle) if used(middle) > capacity else (middle, high)
    return [rounded(entitled(one, high, period)) for one in claims]


def assessment(fair, received):
    return SimpleNamespace(fair=fair, received=received, lag=(float(fair) - float(received)) / fair if fair else 0.0)


# ---- sets and numbers ---------------------------------------------------------------------------------------------------


def pcpus_of(text):
    """Parses a set of pCPUs in the kernel's format: 0-3,7."""
    ranges = (part.split("-") for part in text.split(",") if part)
    return frozenset(pcpu for ends in ranges for pcpu in range(int(ends[0]), int(ends[-1]) + 1))


def union(vcpus):
    return frozenset().union(*(pcpus_of(vcpu["allowed"]) for vcpu in vcpus))


def components(sets):
    """Groups sets that overlap, directly or through others: their indices and union, ordered by the smallest index."""
    found = []
    for at, pcpus in enumerate(sets):
        if not pcpus:
            continue
        indices, own = [at], pcpus
        for other in [other for other in found if other[1] & pcpus]:
            found.remove(other)
            indices, own = other[0] + indices, own | other[1]
        found.append((sorted(indices), own))
    return sorted(found, key=lambda component: component[0][0])


def total(numbers):
    """Returns the sum from left to right; from Python 3.12 on, the built-in sum is compensated."""
    result = 0.0
    for number in numbers:
        result += number
    return result


def rounded(number):
    """Rounds to the nearest whole number, halves upwards."""
    below = math.floor(number)
    return below + (number - below >= 0.5)


def clamp(number, least, most):
    return min(max(number, least), most)


def written(knob, weight):
    """Returns the nearest weight that the knob accepts."""
    nearest = rounded(weight / knob["step"]) * knob["step"] if knob["step"] > 0 else weight
    return clamp(nearest, knob["least"], knob["most"])
