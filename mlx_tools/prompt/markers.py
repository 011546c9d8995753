"""Markers that models are known to be trained on, for when no tokenizer is there to ask.

Sources: the chat templates that the models were published with, and mlx-lm's own tables of
reasoning and tool-call markers (`tokenizer_utils.py`, `tool_parsers/`).
"""

from __future__ import annotations

from typing import Final

REASONING_MARKERS: Final[tuple[tuple[str, str], ...]] = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<reasoning>", "</reasoning>"),
    ("<thought>", "</thought>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<longcat_think>", "</longcat_think>"),
    ("<|think:start|>", "<|think:end|>"),
    ("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    ("<|channel>thought", "<channel|>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),
    ("◁think▷", "◁/think▷"),
)
"""Opening and closing marker of a thought, the commonest first."""

PROTOCOL_TAGS: Final = (
    *("<tool_call>", "</tool_call>"),
    *("<tool_response>", "</tool_response>"),
    *("<final_answer>", "</final_answer>"),
)
"""The tags of the ``xml`` style: only the host, and the model where they stand in place, write
them."""

TOOL_MARKERS: Final = (
    *("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
    *("<|tool_call|>", "<|/tool_call|>", "<|tool_response|>", "<|tool|>", "<|/tool|>"),
    *("<|tool_call_start|>", "<|tool_call_end|>", "<|tool_list_start|>", "<|tool_list_end|>"),
    *("<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>"),
    *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    *("<|tool_call_begin|>", "<|tool_call_argument_begin|>"),
    *("[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CONTENT]", "[ARGS]"),
    *("[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>"),
    *("<｜tool▁call▁end｜>", "<｜tool▁sep｜>", "<｜tool▁outputs▁begin｜>"),
    *("<｜tool▁outputs▁end｜>", "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"),
    *("<minimax:tool_call>", "</minimax:tool_call>", "<|python_tag|>", "<|eom_id|>"),
    *("<longcat_tool_call>", "</longcat_tool_call>", "<function name=", "</function>"),
    *("<start_function_call>", "<end_function_call>"),
    *("<atem:function_calls>", "</atem:function_calls>", "<TOOLCALL>", "</TOOLCALL>"),
)
"""What models write, or are shown, around native tool calls and their results."""

BUILTIN_TOKENS: Final = (
    *("<|im_start|>", "<|im_end|>", "<|im_sep|>", "<|endoftext|>", "<|endofprompt|>"),
    *("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|eot|>"),
    *("<|start_header_id|>", "<|end_header_id|>", "<|header_start|>", "<|header_end|>"),
    *("<start_of_turn>", "<end_of_turn>", "<|turn>", "<turn|>", "<bos>", "<eos>", "<pad>", "<unk>"),
    *("<s>", "</s>", "[INST]", "[/INST]", "<<SYS>>", "<</SYS>>"),
    *("[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[gMASK]", "<sop>", "<eop>"),
    *("<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<|tool|>", "<|end|>"),
    *("<|start|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>"),
    *("<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|SYSTEM_TOKEN|>"),
    *("<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    *("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"),
    *("<|role_start|>", "<|role_end|>", "<|start_of_role|>", "<|end_of_role|>"),
    *("<SPECIAL_10>", "<SPECIAL_11>", "<SPECIAL_12>", "<extra_id_0>", "<extra_id_1>"),
    *("<|startoftext|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>"),
    *("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|file_sep|>", "<|repo_name|>"),
)
"""Control tokens of widely used chat models, beside those of reasoning and tool calls."""

KNOWN_TOKENS: Final = tuple(
    dict.fromkeys(
        (
            *BUILTIN_TOKENS,
            *TOOL_MARKERS,
            *(marker for pair in REASONING_MARKERS for marker in pair),
        )
    )
)
"""All of the above, in a fixed order and each once."""
