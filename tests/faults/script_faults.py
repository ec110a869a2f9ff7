"""Faults in what runs scripts: ways for one to reach the host, to stay, to end the process, or to pass its limits."""

from faults.planting import ASSERTION, Fault

TAKEOVER = "tests/scripting/test_takeover.py"

FAULTS = (
    Fault(
        "host-raises-into-a-script",
        "No error of the host's functions reaches a script.",
        "node/scripting/scripts.py",
        "Scripts._guarded.call",
        """
        try: ...
        except BaseException as error: ...
        """,
        """
        try: ...
        except NotImplementedError as error: ...
        """,
        f"{TAKEOVER}::test_a_fault_of_ours_ends_the_script_and_is_reported",
    ),
    Fault(
        "libraries-can-be-written",
        "Nothing a script does outlives it.",
        "node/scripting/lua/natives.lua",
        "tables.insert",
        "if frozen[list] and (count == 2 or count == 3) then",
        "if frozen[list] and count == 0 then",
        f"{TAKEOVER}::test_nothing_a_script_does_outlives_it",
    ),
    Fault(
        "unpack-behind-the-stack",
        "No script ends the process.",
        "node/scripting/lua/natives.lua",
        "bases.unpack",
        "to - from + 1 + select('#', ...) > STACK then",
        "to - from + 1 + select('#', ...) > 2 ^ 60 then",
        "tests/scripting/test_hostile.py::test_scripts_known_to_end_a_server_or_to_hold_it_do_neither",
    ),
    Fault(
        "memory-limit-left-off",
        "The memory limit holds whatever a script does.",
        "node/scripting/lua/sandbox.lua",
        "go_on",
        """
        local function go_on(ok, ...)
          tighten()
        """,
        "local function go_on(ok, ...)",
        f"{TAKEOVER}::test_memory_stays_limited_where_the_stack_has_no_room",
        (*ASSERTION, "not enough memory"),
    ),
    Fault(
        "words-of-a-part-lost",
        "Every word of a script's command reaches it, once.",
        "node/scripting/scripts.py",
        "Scripts._functions.more_words",
        "self._run.words += map(_word_of, some)",
        "self._run.words = list(map(_word_of, some))",
        f"{TAKEOVER}::test_as_many_words_as_fit_on_the_stack_reach_a_command[4000]",
    ),
    Fault(
        "compiler-held",
        "A source that would hold the compiler is refused.",
        "node/scripting/bytecode.py",
        "",
        "_JUMP_WEIGHT = 50",
        "_JUMP_WEIGHT = 0",
        f"{TAKEOVER}::test_sources_that_would_hold_the_compiler_are_refused",
    ),
    Fault(
        "woken-by-a-script-lost",
        "Who waits for what a script's plain commands change is woken behind it.",
        "node/scripting/scripts.py",
        "Scripts._end_plain",
        "if done.woken is not None: ...",
        "if done.woken is not None and False: ...",
        "tests/scripting/test_plain.py::test_what_waits_is_woken_behind_the_script",
    ),
    Fault(
        "plain-words-unchecked",
        "What is no word ends a script's command, however it was to be run.",
        "node/scripting/lua/sandbox.lua",
        "digits",
        "if type(word) == 'number' then",
        "if word then",
        "tests/scripting/test_plain.py::test_what_is_no_word_is_none_in_a_plain_command",
    ),
)
