"""A metric in the place of the one of that name, which is on the hub."""

import datasets
import evaluate


class Glue(evaluate.Metric):
    """The share of right predictions."""

    def _info(self):
        number = datasets.Value("int64")
        features = datasets.Features({"predictions": number, "references": number})
        return evaluate.MetricInfo(description="", citation="", features=features)

    def _compute(self, predictions, references):
        pairs = list(zip(predictions, references, strict=True))
        return {"accuracy": sum(one == other for one, other in pairs) / len(pairs)}
