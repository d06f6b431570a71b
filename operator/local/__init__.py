"""A SplitwiseDeployment as local processes, and the `splitwise` command.

cli.py          the command and its subcommands
up.py           `up`: a deployment from a file until Ctrl-C
serve.py        start everything, wait until it serves, end everything
wish.py         Ctrl-C, once and twice
plan.py         deployment -> settings files and programs
weights.py      where the model's weights are on this computer
rundir.py       the private folder of a running deployment: lock, record, left-overs
supervisor.py   keeps programs alive
child.py        one program as one process that cannot outlive us
control.py      ps, logs, down
chat.py         talk to a running deployment
demo.py         the demonstration: split answers equal unsplit ones
"""
