"""Callbacks: what follows a run, such as the display of the command line."""

from collections.abc import Mapping, Sequence

from regard.progress import Phase


class Callback:
    """Follows a run. Its methods do nothing; a subclass overrides those it needs."""

    def log(self, message: str) -> None:
        """A message for the user."""

    def on_phase_begin(self, phase: Phase) -> None:
        """Work other than training steps that may take long begins (`regard.progress`), such as a validation."""

    def on_phase_end(self, phase: Phase) -> None:
        """This work has ended."""

    def on_steps_known(self, steps: int) -> None:
        """The number of steps of the run, if it follows from the data; training begins after it."""

    def on_train_begin(self, step: int, tokens: int) -> None:
        """Training begins, or goes on, after this many steps and targets."""

    def on_step(self, step: int, tokens: int) -> None:
        """A step has been taken. tokens: the targets trained on so far"""

    def on_train_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """The metrics of the steps since the last call."""

    def on_validation_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """The metrics of a validation; that of step 0 is of the model that training starts from."""


class CallbackList(Callback):
    """Several callbacks as one."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self.callbacks = callbacks

    def log(self, message: str) -> None:
        for callback in self.callbacks:
            callback.log(message)

    def on_phase_begin(self, phase: Phase) -> None:
        for callback in self.callbacks:
            callback.on_phase_begin(phase)

    def on_phase_end(self, phase: Phase) -> None:
        for callback in self.callbacks:
            callback.on_phase_end(phase)

    def on_steps_known(self, steps: int) -> None:
        for callback in self.callbacks:
            callback.on_steps_known(steps)

    def on_train_begin(self, step: int, tokens: int) -> None:
        for callback in self.callbacks:
            callback.on_train_begin(step, tokens)

    def on_step(self, step: int, tokens: int) -> None:
        for callback in self.callbacks:
            callback.on_step(step, tokens)

    def on_train_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        for callback in self.callbacks:
            callback.on_train_metrics(step, metrics)

    def on_validation_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        for callback in self.callbacks:
            callback.on_validation_metrics(step, metrics)


class PrinterCallback(Callback):
    """Prints the messages and the metrics of a run: `regard.train("quick", callbacks=[regard.PrinterCallback()])`."""

    def log(self, message: str) -> None:
        print(message, flush=True)

    def on_train_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        print(f"step {step:,}: loss {metrics['loss']:.3f}, {metrics['tokens_per_second']:,.0f} tokens/s", flush=True)

    def on_validation_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        values = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
        print(f"validation at step {step:,}: {values}", flush=True)
