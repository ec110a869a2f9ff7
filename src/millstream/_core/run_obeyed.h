/* Plain commands of a primary; a part of run.c, whose invariants hold here too, and read behind run_commands.
 *
 * A primary's additions have their ids, its claims make records and may move the group's position, and what stands between
 * MULTI and EXEC is taken only if all of it is here and may be plain. A command that is not plain is left where it is;
 * between MULTI and EXEC it is handed out as a client's is, since those before it were run.
 */

/* Whether all commands up to EXEC are here, and are such as may be plain */
static int is_plain_unit(Run *run, const char *at, const char *end)
{
    while ((at = split(run, at, end)) != NULL) {
        if (run->count == 1)
            return is_word(run->words[0], "EXEC");
        if (find_obeyed(run) < 0)
            return 0;
    }
    return 0;
}

/* Runs what is plain from *whole on, in a transaction if it is open; where it ended. *whole is behind the last unit of which
 * all was run, so it is the same unless a transaction is open; *other is a command of that which is not plain. */
static const char *obey_commands(Run *run, const char **whole, const char *end, int is_open, PyObject **other,
                                 Py_ssize_t *count, int *last)
{
    const char *at = *whole, *next;
    uint64_t before = nanoseconds();
    while ((is_open || *count < COMMANDS_MAX) && run->woken == NULL && (next = split(run, at, end)) != NULL) {
        if (run->count == 1) {
            if (!is_word(run->words[0], is_open ? "EXEC" : "MULTI") || (!is_open && !is_plain_unit(run, next, end)))
                break;
            is_open = !is_open;
            at = next;
            *whole = is_open ? *whole : at;
            continue;
        }
        int command = find_obeyed(run);
        if (command < 0 || commands[command].obeyed(run) != DONE) {
            PyErr_Clear();
            if (is_open && (*other = view_list(run->words, run->count)) == NULL)
                PyErr_Clear(); /* it stays where it is, as outside of transactions */
            else if (is_open)
                at = next;
            break;
        }
        run->of->replies.size = 0;
        before = count_command(run, command, before, at, next);
        at = next;
        *whole = is_open ? *whole : at;
        *last = command;
        ++*count;
    }
    return at;
}
