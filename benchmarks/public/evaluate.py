"""In the place of the package evaluate, whose metrics are on the hub."""


class Accuracy:
    """The share of right predictions."""

    def __init__(self):
        self.right = []

    def add_batch(self, predictions, references):
        """Count a batch."""
        self.right += (predictions == references).tolist()

    def compute(self):
        """The metric of all batches since the last call."""
        right, self.right = self.right, []
        return {"accuracy": sum(right) / max(1, len(right))}


def load(*_):
    """The one metric that there is."""
    return Accuracy()
