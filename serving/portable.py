"""Plays the tasks of how.json with plain transformers and PEFT: python play.py BASE_FOLDER [cuda]"""

import json
import sys
from pathlib import Path

from peft import PeftModel
from transformers import AutoModelForImageTextToText, AutoProcessor

from training import environments, evaluate

how = json.loads(Path("how.json").read_text())
words = (processor := AutoProcessor.from_pretrained(sys.argv[1], padding_side="left")).tokenizer
model = AutoModelForImageTextToText.from_pretrained(sys.argv[1], dtype=how["dtype"])
model = PeftModel.from_pretrained(model, "adapter").to((sys.argv[2:] or ["cpu"])[0]).eval()


class Player:
    def act(self, asked):
        texts = [words.apply_chat_template(one.messages(), **how["chat"]) for one in asked]
        inputs = processor(text=texts, images=[i for one in asked for i in one.images], **how["inputs"])
        tokens = model.generate(**inputs.to(model.device), eos_token_id=words.eos_token_id, **how["generate"])
        return words.batch_decode(tokens[:, inputs.input_ids.shape[1] :], skip_special_tokens=True)


rules = evaluate.EvaluationSettings(environments.named(**how["environment"]), **how["rules"])
records = evaluate.play(Player(), list(map(rules.environment.load, how["tasks"])), rules)
print(json.dumps(evaluate.summarize(records).to_json()))
