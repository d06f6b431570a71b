"""Text to token ids and back, from the model's own files.

The router is the only program that needs it: machines speak token ids. `load` takes a Hugging Face folder
or a GGUF file; `Tokenizer` encodes prompts and conversations, and its `detokenizer` turns output tokens into
text piece by piece without ever cutting a character in two.
"""

from runtime.tokenizer.detokenizer import Detokenizer
from runtime.tokenizer.source import load
from runtime.tokenizer.template import ChatTemplate, TemplateRefusal
from runtime.tokenizer.tokenizer import Tokenizer

__all__ = ["ChatTemplate", "Detokenizer", "TemplateRefusal", "Tokenizer", "load"]
