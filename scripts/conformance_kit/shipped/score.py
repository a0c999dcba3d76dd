#!/usr/bin/env python3
"""Score the answers of an inference engine against the golden values of this kit. Needs only Python 3.10 or newer.

    python score.py KIT ANSWERS.json [ANSWERS.json ...]     a table: a line for each case, a column for each engine
    python score.py KIT ANSWERS.json --level 2              exit 1 only if a case does not reach level 2
    python score.py KIT ANSWERS.json --known phi3-longrope  this case may fail; repeat for several
    python score.py KIT ANSWERS.json --json                 the same as JSON
    python score.py KIT --check-files                       compare the kit's files with its manifest
    python score.py --version                               the version of this scorer and of its kit

Levels of a case:

1. It loads: every prompt has finite numbers.
2. It reads the table: the answers are nearer to the right table than to every wrong one, and near enough.
3. It is exact: every log probability is within rounding. At least five are compared in each prompt. In bfloat16, and with
   quantised matrices, level 3 means as near as transformers with the same rounding. float32 decides.

A case below level 2 shows the name of the wrong table that fits. Exit code 0: every case reaches the level, by default 3.
1: a case does not, or a file differs from the manifest. 2: wrong usage, or a file that cannot be scored.
"""

import argparse
import difflib
import hashlib
import json
import math
import sys
from pathlib import Path

VERSION = 2  # of the kit
FAILS, LOADS, TABLE, EXACT = range(4)
WORDS = ("fails", "loads", "table", "exact")
COUNTED = ((LOADS, "loads"), (TABLE, "reads the table"), (EXACT, "exact"))
RIGHT = "right"
# A table fits where it is at most this share as far from the answers as the next one. Rounding moves answers away from all
# tables alike, and an engine that computes something else is about as far from each.
NEARER = 0.75
POSITIVE = 1e-3  # nats: how far above 0 rounding may put a log probability
# By what an engine computes in: what the probabilities of all next tokens may sum to. The sum of a log softmax in float32 is 1 to
# six digits; in bfloat16, of 8 bits, its log probabilities of 5 to 8 nats are each rounded by up to 0.016, all alike where the
# rounded one is the normaliser.
MOST = {"float32": 1.001, "bfloat16": 1.05}
ENOUGH = 5  # numbers of a prompt that must be compared for level 3: servers name as many next tokens
SHOWN = 300  # characters of an engine's error


class Unusable(Exception):
    """Answers, or a file, that cannot be compared; the sentence says where."""


def main(arguments=None):
    """Return the exit code."""
    head, _, more = __doc__.partition("\n\n")
    parser = argparse.ArgumentParser(
        description=head, epilog=more, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"version {VERSION} of the kit")
    parser.add_argument("kit", type=Path, help="the folder of the kit, where manifest.json lies")
    parser.add_argument("answers", type=Path, nargs="*", help="a file of answers, as a driver writes it")
    parser.add_argument("--level", type=int, choices=(1, 2, 3), default=EXACT, help="what every case must reach")
    parser.add_argument(
        "--case", action="append", default=[], metavar="CASE", help="score this case alone; repeat for several"
    )
    parser.add_argument("--known", action="append", default=[], metavar="CASE", help="a case that may fail")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--check-files", action="store_true", help="hold the files against the manifest's sha256")
    options = parser.parse_args(arguments)
    if not options.answers and not options.check_files:
        parser.error("name a file of answers, or --check-files")
    try:
        if not (options.kit / "manifest.json").is_file():
            raise Unusable(f"{options.kit} is no conformance kit: it has no manifest.json")
        manifest = read(options.kit / "manifest.json")
        for name in (*options.known, *options.case):
            if name not in manifest["cases"]:
                near = difflib.get_close_matches(name, manifest["cases"])
                parser.error(
                    f"there is no case {name}; {'the nearest: ' if near else 'the cases: '}{', '.join(near or manifest['cases'])}"
                )
        changed = changed_files(options.kit, manifest) if options.check_files else []
        scored = [score(options.kit, manifest, read(path), str(path)) for path in options.answers]
        for engine in scored:
            engine["cases"] = {name: engine["cases"][name] for name in options.case or engine["cases"]}
        text = json.dumps(scored, indent=1) if options.json else report(scored, options.known)
    except Unusable as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    except RecursionError:
        print("Error: the answers hold lists or objects that are nested too deeply", file=sys.stderr)
        return 2
    for line in changed:
        print(line, file=sys.stderr)
    if options.check_files and not changed:
        print(f"{len(manifest['files'])} files are those of the manifest", file=sys.stderr)
    if scored:
        print(text)
    unanswered = [engine for engine in scored if all(case["level"] is None for case in engine["cases"].values())]
    for engine in unanswered:
        print(f"Error: {engine['engine']} answers no case", file=sys.stderr)
    below = [
        name
        for engine in scored
        for name, case in engine["cases"].items()
        if case["level"] is not None and case["level"] < options.level and name not in options.known
    ]
    return 1 if changed or below or unanswered else 0


def score(kit, manifest, answers, where):
    """Return the level of each case of one engine, with what was measured.

    Raises: Unusable where the file is no answers to this kit.
    """
    for key in ("kit", "engine", "release", "dtype", "format", "answers"):
        if key not in answers:
            raise Unusable(f"{where}: there is no {key!r}; the kit's README says what a file of answers holds")
    for key in ("engine", "release"):
        if not isinstance(answers[key], str):
            raise Unusable(f"{where}: {key!r} is no string")
    if answers["kit"] != manifest["version"]:
        raise Unusable(f"{where}: answers to version {answers['kit']} of the kit, and this is {manifest['version']}")
    if answers["format"] not in ("hf", "gguf"):
        raise Unusable(f"{where}: format {answers['format']!r} is neither hf nor gguf")
    if answers["dtype"] not in manifest["dtypes"]:
        known = ", ".join(manifest["dtypes"])
        raise Unusable(f"{where}: dtype {answers['dtype']!r} has no bounds in the kit; there are {known}")
    if not isinstance(answers["answers"], dict):
        raise Unusable(f"{where}: 'answers' is no object of cases")
    if unknown := sorted(set(answers["answers"]) - set(manifest["cases"])):
        raise Unusable(f"{where}: answers to cases that the kit does not have: {', '.join(unknown)}")
    cases = {}
    for name, about in manifest["cases"].items():
        if answers["format"] == "gguf" and about["no_gguf"]:
            cases[name] = {"level": None, "said": f"no GGUF file: {about['no_gguf']}"}
        elif name not in answers["answers"]:
            cases[name] = {"level": FAILS, "said": "no answer for this case"}
        elif why := unsupported(answers["answers"][name]):
            cases[name] = {"level": None, "said": f"not supported: {why}"}
        else:
            golden = read(kit / "golden" / f"{name}.json")
            try:
                cases[name] = judged(golden, answers["answers"][name], answers["dtype"])
            except Unusable as error:
                cases[name] = {"level": FAILS, "said": str(error)}
    about = {key: answers[key] for key in ("engine", "release", "dtype", "format")}
    return {**about, "versions": answers.get("versions", {}), "kit": manifest["version"], "cases": cases}


def unsupported(answer):
    """Return why an engine has no class or no cache for a case, in at most SHOWN characters; empty if it answers."""
    why = answer.get("unsupported") if isinstance(answer, dict) else None
    return "" if why is None else " ".join(str(why).split())[:SHOWN] or "no reason given"


def judged(golden, answer, dtype):
    """Return the level of a case; largest and mean difference from the right table, in nats; nearest: the table that fits.

    Raises: Unusable with what is wrong with the answer.
    """
    if isinstance(answer, dict) and "error" in answer:
        text = "" if answer["error"] is None else str(answer["error"])
        raise Unusable(" ".join(text.split())[:SHOWN] or "an error without words")
    numbers = compared(golden, answer, MOST[dtype])
    # An engine that computes with the quantised matrices of a case rounds the inputs of each matrix too.
    rounding = golden["quantised"] if golden["quantised"] and answer.get("quantised") == golden["quantised"] else dtype
    bounds = golden["bounds"][rounding]
    off = {
        table["name"]: [abs(given - table[kind][prompt][index]) for (prompt, kind, index), given in numbers]
        for table in golden["tables"]
    }
    mean = {name: sum(one) / len(one) for name, one in off.items()}
    largest = max(off[RIGHT])
    nearest, second = sorted(mean, key=mean.get)[:2]
    fits = mean[nearest] <= bounds["table"] and mean[nearest] <= NEARER * mean[second]
    found = {
        "largest": short(largest), "mean": short(mean[RIGHT]), "nearest": nearest if fits else None, "numbers": len(numbers),
    }  # fmt: skip
    if fits and nearest == RIGHT:
        if largest <= bounds["exact"]:
            said = next(too_few(golden, numbers, answer["prompts"]), "")
            return {"level": TABLE if said else EXACT, "said": said, **found}
        said = f"off by {largest:.2g}, the bound for {rounding} is {bounds['exact']:.2g}"
        return {"level": TABLE, "said": said, **found}
    if fits:
        says = next(table["says"] for table in golden["tables"] if table["name"] == nearest)
        said = f"{nearest}: {says}" if says else nearest
    else:
        said = (
            f"no table of the kit fits: off by {mean[RIGHT]:.2g} on average; nearest: {nearest} ({mean[nearest]:.2g})"
        )
    return {"level": LOADS, "said": said, **found}


def too_few(golden, numbers, given):
    """Yield a message for each prompt with too few compared numbers for level 3.

    A turn of one token has no scores to compare, so an engine that returns only scores passes it.
    """
    for at, prompt in enumerate(golden["prompts"]):
        count = sum(place[0] == at for place, _ in numbers)
        kinds = {"scores": prompt["places"], "next": prompt["tokens"]}
        comparable = sum(len(kinds[kind]) for kind in kinds if given[at].get(kind) is not None)
        if count < min(ENOUGH, comparable):
            yield f"prompt of {prompt['length']} tokens: numbers compared: {count}; level 3 asks for {ENOUGH}"


def compared(golden, answer, most):
    """Return the numbers of an answer that have golden ones, each with its place: (prompt, "scores" or "next", index).

    most: what the probabilities of next tokens may sum to.
    Raises: Unusable for answers that are short, not finite, or of other tokens.
    """
    given = answer.get("prompts") if isinstance(answer, dict) else None
    prompts = golden["prompts"]
    if not isinstance(given, list) or len(given) != len(prompts):
        count = len(given) if isinstance(given, list) else "no"
        raise Unusable(f"{count} prompts are answered, and {len(prompts)} were asked")
    found = []
    for at, (prompt, one) in enumerate(zip(prompts, given, strict=True)):
        where = f"prompt of {prompt['length']} tokens"
        scores, following = (one.get("scores"), one.get("next")) if isinstance(one, dict) else (None, None)
        if scores is None and following is None:
            raise Unusable(f"{where}: neither scores nor next tokens")
        if "ids" in one and one["ids"] != golden["ids"][: prompt["length"]]:
            raise Unusable(f"{where}: the engine computed other token ids")
        if scores is not None:
            found += [((at, "scores", i), value) for i, value in enumerate(of_prompt(prompt, scores, where))]
        if following is not None:
            found += [((at, "next", i), value) for i, value in behind(golden, prompt, following, most, where)]
    return found


def of_prompt(prompt, scores, where):
    """Return the scores of the tokens that are compared. Raises: Unusable."""
    if not isinstance(scores, list) or len(scores) != prompt["length"]:
        count = len(scores) if isinstance(scores, list) else "no"
        more = "; was a token put before the prompt?" if count == prompt["length"] + 1 else ""
        raise Unusable(f"{where}: {count} scores{more}")
    return [log_prob(scores[place], f"{where}: score of token {place}") for place in prompt["places"]]


def behind(golden, prompt, given, most, where):
    """Return the next tokens that are compared, each with its index among the golden ones. Raises: Unusable."""
    if not isinstance(given, dict):
        raise Unusable(f"{where}: the next tokens are no object of token ids and log probabilities")
    known = set(map(str, range(golden["vocabulary"])))
    for token, value in given.items():
        if token not in known:
            raise Unusable(f"{where}: next token {token[:SHOWN]!r} is no id below {golden['vocabulary']}")
        log_prob(value, f"{where}: next token {token}")
    total = sum(map(math.exp, given.values()))
    if total > most:
        raise Unusable(f"{where}: the probabilities of the next tokens sum to {total:.6g}, more than 1")
    shared = [(i, given[str(token)]) for i, token in enumerate(prompt["tokens"]) if str(token) in given]
    if not shared:
        raise Unusable(f"{where}: none of the next tokens is among those that a table makes likely")
    return shared


def log_prob(value, where):
    """Return a log probability. Raises: Unusable for what is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Unusable(f"{where} is {repr(value)[:SHOWN]}, not a log probability")
    # The largest float bounds integers, which may lie beyond every float.
    if not -sys.float_info.max <= value <= POSITIVE:
        raise Unusable(f"{where} is {str(value)[:SHOWN]}; a log probability is finite and at most 0")
    return value


def report(scored, known):
    """Return a line for each case with a column for each engine, then the counts of each and what is wrong.

    known: the cases that may fail.
    """
    heads = ["case", *(f"{one['engine']} {one['release']} {one['dtype']}" for one in scored)]
    names = scored[0]["cases"] if scored else ()
    lines = [heads]
    for name in names:
        mark = " (known)" if name in known else ""
        lines.append([name, *(cell(one["cases"][name]) + mark for one in scored)])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = ["  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    for head, one in zip(heads[1:], scored, strict=True):
        levels = [case["level"] for case in one["cases"].values() if case["level"] is not None]
        counts = ", ".join(f"{words} {sum(level >= at for level in levels)}" for at, words in COUNTED)
        left_out = len(one["cases"]) - len(levels)
        text += ["", f"{head}: {counts}, of {len(levels)}" + (f"; n/a {left_out}" if left_out else "")]
        numbers = [case["numbers"] for case in one["cases"].values() if "numbers" in case]
        if numbers:
            text += [f"  numbers compared in a case: {min(numbers)} to {max(numbers)}"]
        text += [f"  {name}: {case['said']}" for name, case in one["cases"].items() if case["said"]]
        passes = [name for name, case in one["cases"].items() if name in known and case["level"] == EXACT]
        text += [f"  {name}: exact; remove --known {name}" for name in passes]
    return "\n".join(text)


def cell(case):
    """Return a case's level in a word, with the wrong table that fits."""
    if case["level"] is None:
        return "n/a"
    if case["level"] == LOADS:
        return f"loads: {case['nearest'] or 'no table fits'}"
    return WORDS[case["level"]]


def changed_files(kit, manifest):
    """Return a sentence for each file that is missing or not the one that the manifest lists."""
    wrong = []
    for name, known in manifest["files"].items():
        path = kit / name
        if not path.is_file():
            wrong.append(f"{name} is missing")
        elif hashlib.sha256(path.read_bytes()).hexdigest() != known["sha256"]:
            wrong.append(f"{name} is not the file of the manifest")
    return wrong


def short(number):
    """Return a number with two digits."""
    return float(f"{number:.2g}")


def read(path):
    """Return the object of a JSON file. Raises: Unusable."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Unusable(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise Unusable(f"{path} is not JSON: {error}") from error
    except RecursionError as error:
        raise Unusable(f"{path}: lists or objects are nested too deeply") from error
    if not isinstance(data, dict):
        raise Unusable(f"{path}: JSON, but no object")
    return data


if __name__ == "__main__":
    sys.stdout.reconfigure(errors="backslashreplace")  # an engine's error may hold what the terminal cannot show
    sys.exit(main())
