"""Load a model that a hospital has kept, as transformers does, and ask it something: python ask.py
FOLDER.
"""

import sys

from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

PROMPT = (
    "### Instruction:\nWhere does the patient go?\n\n### Input:\nEmma has a temperature of 40 "
    "and a pulse of 80.\n\n"
)

logging.disable_progress_bar()
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
asked = tokenizer(PROMPT + "### Response:\n", return_tensors="pt", return_token_type_ids=False)
answer = model.generate(
    **asked, max_new_tokens=20, do_sample=False, pad_token_id=tokenizer.eos_token_id
)
print(
    f"{sys.argv[1]}: "
    f"{tokenizer.decode(answer[0, asked['input_ids'].shape[1] :], skip_special_tokens=True)}"
)
