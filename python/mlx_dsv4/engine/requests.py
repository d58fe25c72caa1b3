"""The four ways to ask for a generation, for whoever can submit one."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Never

from mlx_dsv4.engine.arguments import check_params, check_prompt
from mlx_dsv4.engine.events import Result
from mlx_dsv4.engine.output import ChatOutput, Output, PlainOutput
from mlx_dsv4.engine.params import Params
from mlx_dsv4.engine.stream import Stream
from mlx_dsv4.engine.turns import Turns
from mlx_dsv4.text import ChatEncoding, StopStrings, Tokenizer
from mlx_dsv4.text.chat import Effort, Message, ToolChoice

DEFAULTS = Params()


@dataclass(frozen=True, slots=True)
class Asked:
    """A prompt and what is to be made of it.

    Attributes:
        prompt: Token ids, not checked yet.
        params: How tokens are drawn, and when to stop.
        output: What they become.
        anchors: Positions of the prompt that others may share.
        on_done: Called with the result before it is delivered.
    """

    prompt: Sequence[int]
    params: Params
    output: Output
    anchors: Sequence[int] = ()
    on_done: Callable[[Result], None] | None = None


class Requests(ABC):
    """Generates from prompts and from messages, at once or as a stream of events.

    Attributes:
        tokenizer: Of the model.
    """

    tokenizer: Tokenizer

    @abstractmethod
    def _submit(self, asked: Asked) -> Stream: ...

    @abstractmethod
    def _chat_parts(self) -> tuple[ChatEncoding, Turns]: ...

    def generate(
        self, prompt: str | Sequence[int], params: Params = DEFAULTS, **keywords: Never
    ) -> Result:
        """Continue a prompt and wait for the end; as :meth:`stream`."""
        return self.stream(prompt, params, **keywords).result()

    def stream(
        self, prompt: str | Sequence[int], params: Params = DEFAULTS, **keywords: Never
    ) -> Stream:
        """Continue a prompt, token by token.

        Args:
            prompt: Text, which is read after the model's BOS token; or token ids as they are.
            params: How tokens are drawn, and when to stop.
            keywords: None: fields of :class:`Params` are refused with a word on where they go.

        Returns:
            Its events: :class:`Progress` while the prompt is read, :class:`Text`, :class:`Done`.

        Raises:
            PromptError: the prompt is no text and no ids, empty, longer than the context, or holds
                an id outside the vocabulary.
            ParamsError: ``logit_bias`` holds such an id, or ``params`` is no :class:`Params`.
            SlotError: no slot can be had for it.
            ClosedError: the engine has been closed.
        """
        check_params(params, keywords)
        check_prompt(prompt)
        if isinstance(prompt, str):
            prompt = [self.tokenizer.bos_id, *self.tokenizer.encode(prompt)] if prompt else []
        output = PlainOutput(self.tokenizer.stream(control=False), StopStrings(params.stop))
        return self._submit(Asked(prompt, params, output))

    def chat(
        self,
        messages: Sequence[Message],
        params: Params = DEFAULTS,
        *,
        tools: Sequence[Message] = (),
        thinking: bool = True,
        effort: Effort | None = None,
        tool_choice: ToolChoice = "auto",
        **keywords: Never,
    ) -> Result:
        """Answer a conversation and wait for the end; as :meth:`stream_chat`."""
        return self.stream_chat(
            messages,
            params,
            tools=tools,
            thinking=thinking,
            effort=effort,
            tool_choice=tool_choice,
            **keywords,
        ).result()

    def stream_chat(
        self,
        messages: Sequence[Message],
        params: Params = DEFAULTS,
        *,
        tools: Sequence[Message] = (),
        thinking: bool = True,
        effort: Effort | None = None,
        tool_choice: ToolChoice = "auto",
        **keywords: Never,
    ) -> Stream:
        """Answer a conversation, token by token.

        ``result.message`` is the answer as a message. Where it is sent again as part of a
        conversation, the prompt has the tokens that were sampled, so that nothing up to its end
        is computed again.

        Args:
            messages: As in OpenAI's chat completions; see :meth:`ChatEncoding.render`.
            params: How tokens are drawn, and when to stop; stop strings are not looked for in the
                reasoning.
            tools: As in OpenAI's chat completions.
            thinking: Whether the model is to reason first.
            effort: How much: "low", "high", "max", or None.
            tool_choice: "auto", "none" or "required".
            keywords: None, as :meth:`stream`.

        Returns:
            Its events: :class:`Progress` while the prompt is read, :class:`Reasoning`,
            :class:`Text`, :class:`ToolCallDelta`, :class:`Done`.

        Raises:
            ChatError: the messages or tools cannot be rendered; says why.
            PromptError, ParamsError, SlotError, ClosedError: as :meth:`stream`.
        """
        check_params(params, keywords)
        encoding, turns = self._chat_parts()
        prompt = encoding.render(
            messages, tools=tools, thinking=thinking, effort=effort, tool_choice=tool_choice
        )
        output = ChatOutput(self.tokenizer.stream(control=False), prompt.parser(params.stop))

        def remember(result: Result) -> None:
            # A stop string is not in the message, and what was cancelled may lack held-back text.
            if result.finish_reason != "cancelled" and not output.stopped:
                turns.remember(result, prompt)

        ids = turns.splice(prompt)
        return self._submit(Asked(ids, params, output, [prompt.system_end], remember))
