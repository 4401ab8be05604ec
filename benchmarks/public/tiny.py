"""Writes tiny models, tokenizers and texts into the folder in which a script is started.

    python tiny.py KIND=FOLDER ...

A name of the hub is a folder, so that `from_pretrained` reads it and no network is needed.
"""

import json
import sys
from pathlib import Path

TEXT = "the quick brown fox jumps over the lazy dog and runs away from twelve angry geese . "
SIZES = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4)


def tokenizer(folder: str) -> int:
    """Save a tokenizer by words, and return the size of its vocabulary."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<s>", "</s>"]
    words = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.train_from_iterator([TEXT], trainers.WordLevelTrainer(special_tokens=special))
    PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]",
        sep_token="[SEP]", mask_token="[MASK]", bos_token="<s>", eos_token="</s>",
        model_max_length=512,
    ).save_pretrained(folder)  # fmt: skip
    return 32


def llama(folder: str) -> None:
    """A Llama of two layers, with its tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(vocab_size=tokenizer(folder), num_key_value_heads=4, **SIZES,
                         max_position_embeddings=64, tie_word_embeddings=False)  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)


def qwen3(folder: str) -> None:
    """A Qwen 3 of two layers, with its tokenizer."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(vocab_size=tokenizer(folder), num_key_value_heads=4, head_dim=4, **SIZES,
                         max_position_embeddings=64)  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(folder)


def gpt2(folder: str) -> None:
    """A GPT-2 of two layers, with its tokenizer."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=tokenizer(folder), n_embd=16, n_layer=2, n_head=4,
                        n_positions=64)  # fmt: skip
    GPT2LMHeadModel(config).save_pretrained(folder)


def bert(folder: str) -> None:
    """A BERT of two layers, with its tokenizer."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(vocab_size=tokenizer(folder), **SIZES, max_position_embeddings=512)
    BertForSequenceClassification(config).save_pretrained(folder)


def t5(folder: str) -> None:
    """A T5 of two layers, with its tokenizer."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(vocab_size=tokenizer(folder), d_model=16, d_kv=4, d_ff=32, num_layers=2,
                      num_heads=4, decoder_start_token_id=0)  # fmt: skip
    T5ForConditionalGeneration(config).save_pretrained(folder)


def texts(folder: str) -> None:
    """Lines of text as a data set that `load_dataset` reads of a folder."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    line = json.dumps({"text": TEXT * 4}) + "\n"
    (Path(folder) / "train.jsonl").write_text(line * 64)


def picotron(_: str) -> None:
    """Where picotron looks for a model that it has downloaded."""
    llama("hf_model/tiny")
    llama("hf_model_safetensors")


def tokens(file: str) -> None:
    """Tokens of 16 bits, as nanoGPT reads them."""
    import numpy as np

    Path(file).parent.mkdir(parents=True, exist_ok=True)
    np.random.default_rng(0).integers(0, 64, 20000).astype(np.uint16).tofile(file)


def npy(file: str) -> None:
    """Tokens as build-nanogpt reads them."""
    import numpy as np

    Path(file).parent.mkdir(parents=True, exist_ok=True)
    np.save(file, np.random.default_rng(0).integers(0, 64, 20000).astype(np.uint16))


def bin(file: str) -> None:
    """Tokens as llm.c reads them: a head of 256 integers, and 16 bits each."""
    import numpy as np

    tokens(file)
    head = np.zeros(256, np.int32)
    head[:3] = 20240520, 1, 20000
    Path(file).write_bytes(head.tobytes() + Path(file).read_bytes())


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        kind, _, place = argument.partition("=")
        globals()[kind](place)
