"""Every column that `mpisgd predict` and `mpisgd advise` print, defined with its unit."""

TERMS = {
    "source": "always `model`: a prediction of ours, never a published or measured number",
    "net": "name of the layered description",
    "device": "name of the device",
    "network": "name of the network",
    "topology": "flat: only the link between servers; leader: an all-reduce inside each server, "
    "then one between servers; shared-nic: as leader, with the link between servers shared by "
    "all devices of a server",
    "allreduce": "all-reduce algorithm, or cost formula",
    "rounding": "ranks that are no power of two: ceil (PALEO, optimistic) or fold (two messages "
    "more)",
    "scaling": "weak: --batch samples a rank; strong: --batch samples shared by all ranks",
    "ranks": "number of workers m, one device each",
    "local_batch": "samples a rank and step (strong scaling: of the slowest rank)",
    "message_bytes": "bytes of one all-reduce",
    "peak_GFLOPS": "peak of the device, 10^9 FP32 operations a second",
    "memory_GBps": "memory bandwidth of the device, GB/s (read as 2^30 bytes, as PALEO does)",
    "peak_share": "share of the device's peak and memory bandwidth that is reached",
    "pipelined": "whether a layer takes the longer of arithmetic and memory, not their sum",
    "compute": "paleo: layer by layer; flops: FLOP / peak alone, no update",
    "bandwidth_Gbps": "of the link between servers, 10^9 bits a second",
    "latency_s": "seconds a message between servers takes beside its bytes",
    "sum_s_per_byte": "seconds to sum one received byte",
    "server_size": "devices a server",
    "server_bandwidth_GBps": "inside a server, 10^9 bytes a second",
    "server_latency_s": "seconds a message inside a server takes beside its bytes",
    "bucket_bytes": "bytes after which minibatch-overlap sends a bucket of gradients",
    "samples": "samples of an epoch",
    "wire": "how averages travel, if not in full: a format, topk:SHARE or powersgd:RANK",
    "merge": "convex: xi * own + (1 - xi) * mean; delta: own + (mean - own) of the start, loses "
    "no step; overwrite: convex with xi = 0",
    "xi": "share of a rank's own parameters in a convex merge",
    "progress_share": "share of t_c that can overlap with computation",
    "slowdown": "by how much longer computation takes while communication is in flight (0.1: 10 %)",
    "noise": "standard deviation / mean of a rank's step time (log-normal, independent)",
    "quorum": "ranks that a round of minibatch-partial, local and dasgd waits for: a number, solo, "
    "majority (one that is drawn) or all; none: majority for the first, all for the others",
    "parameters": "trainable parameters, biases and normalisation included",
    "forward_s": "seconds of the forward pass of one step",
    "backward_s": "seconds of the backward pass of one step",
    "update_s": "seconds of the parameter update of one step",
    "compute_s": "t_p: seconds of computation of one step (forward, backward, update)",
    "allreduce_s": "t_c: seconds of one all-reduce of the whole message, nothing beside it",
    "exchange_s": "t_1, of gossip alone: seconds of an average of two ranks, latency + bytes / "
    "bandwidth + their sum; what it waits for in place of t_c",
    "ratio": "t_c / t_p",
    "delay": "d: steps between the start of an average and its merge (0: merged at once); by the "
    "rule, the smallest d with t_c <= d t_p, at least 1, and 0 for one rank",
    "tau": "steps between averages; by the rule d + 1",
    "effective_share": "effective steps / steps of a long run: a convex merge throws (1 - xi) of "
    "the d steps in flight away, so a round of tau steps is worth tau - (1 - xi) d",
    "memory_share": "memory of a step / memory of the device, a lower bound: parameters, "
    "gradient, momentum and kept outputs in fp32; above 1 it does not fit",
    "algorithm": "minibatch: gradients averaged every step; minibatch-overlap: in buckets during "
    "backward; local, slowmo, diloco: parameters every tau steps; dasgd: every tau steps, merged d "
    "steps later; "
    "streaming-diloco: the same by halves, in turn; easgd: every tau steps, needed at the next; "
    "post-local: as local, once it is; gossip: parameters of pairs every tau steps, merged d steps "
    "later",
    "iterations": "steps of one epoch: ceil(samples / global batch)",
    "exposed_s": "seconds of a step, on average, that wait for communication",
    "slowed_s": "seconds of a step, on average, by which communication in flight slows computation",
    "noise_s": "seconds of a step, on average, that wait for slower ranks; below 0 where a round "
    "begins before a step of average length is over",
    "step_s": "seconds of one step: compute_s + exposed_s + slowed_s + noise_s",
    "round_s": "seconds from one average to the next: tau * step_s",
    "round_bytes": "bytes that a round averages: those of the parameters, whatever the algorithm, "
    "or what --wire leaves of them; what a rank sends for them is the all-reduce's affair; in "
    "gossip it sends and receives them once, in exchange_s",
    "effective_step_s": "seconds of one effective step: step_s / effective_share",
    "hidden_share": "1 - exposed / t_c of a round: the share of communication that is hidden; of "
    "gossip, exchange_s in place of t_c",
    "samples_per_s": "samples all ranks compute in a second",
    "epoch_s": "seconds of one epoch: iterations * step_s; not time to accuracy: under weak "
    "scaling the global batch grows with the ranks",
    "epoch_compute_s": "seconds of one epoch in computation",
    "epoch_exposed_s": "seconds of one epoch that wait for communication",
    "epoch_waiting_s": "seconds of one epoch slowed by communication or waiting for slower ranks",
    "name": "name of the layer",
    "forward_compute_s": "seconds of the layer's forward arithmetic: FLOP / peak",
    "forward_memory_s": "seconds of the layer's forward memory traffic: bytes / bandwidth",
    "backward_compute_s": "seconds of the layer's backward arithmetic",
    "backward_memory_s": "seconds of the layer's backward memory traffic",
    "delay_low": "the rule's d if t_c / t_p were smaller by the spread",
    "delay_high": "the rule's d if t_c / t_p were larger by the spread",
    "lower_ratio": "this d holds for t_c / t_p above this",
    "upper_ratio": "this d holds for t_c / t_p up to this",
    "sure": "whether delay_low and delay_high are equal",
    "fastest": "whether the algorithm has the least seconds per effective step here",
    "command": "the command line that runs this algorithm; your --model and --data go behind it",
}


def glossary(columns: tuple[str, ...] | None = None) -> str:
    """The definitions of `columns` (all of TERMS when None), one a line."""
    return "\n".join(f"  {key}: {TERMS[key]}" for key in (columns or tuple(TERMS)))


def markdown() -> str:
    """TERMS as a Markdown table."""
    lines = [f"| `{key}` | {text} |" for key, text in TERMS.items()]
    return "\n".join(["| term | meaning, unit |", "|---|---|", *lines])
