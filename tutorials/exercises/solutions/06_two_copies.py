"""Exercise 6: M2 before everything that Megatron does with four. It is the plan M2,megatron."""


# USER CODE BEGIN
def sequence(kind, name):
    if kind == "linear":
        inner = "N4" if name.endswith(("proj", "fc2")) else "K4"
    else:
        cut = {"embedding": "N4", "attention": "K4", "activation": "K4", "loss": "K4"}
        inner = cut.get(kind, "R4")
    return f"M2,{inner}"


# USER CODE END
