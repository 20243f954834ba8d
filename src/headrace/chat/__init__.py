"""Text in, token ids out, events back: everything about chat, and nothing about tensors."""

from headrace.chat.detokenizer import Detokenizer
from headrace.chat.reader import TurnReader
from headrace.chat.renderer import Renderer
from headrace.chat.stops import StopScanner
from headrace.chat.tokenizer import Tokenizer

__all__ = ["Detokenizer", "Renderer", "StopScanner", "Tokenizer", "TurnReader"]
