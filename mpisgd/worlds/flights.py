"""What is told of an average on its way, in either world."""

import math
from collections.abc import Mapping


class Flight:
    """When an average was started last and its arrival was noticed (s), and what it sent."""

    began_s = ended_s = math.nan
    sent_bytes = 0

    def state(self) -> dict[str, float]:
        """Of one that has been waited for."""
        told = {"began_s": self.began_s, "ended_s": self.ended_s}
        return told | {"sent_bytes": float(self.sent_bytes)}

    def restore(self, state: Mapping[str, float]) -> None:
        """As if it had arrived: a plan that was not started is not waited for."""
        self.began_s, self.ended_s = state["began_s"], state["ended_s"]
        self.sent_bytes = int(state.get("sent_bytes", 0))  # older checkpoints do not say
