"""Slurm's commands as small scripts: jobs run on this machine, and what was asked is kept."""

import os
from pathlib import Path

SBATCH = """#!/bin/bash
# sbatch SCRIPT: numbers the job, keeps the script, runs it in the background.
number=$(($(ls "$SLURM_FAKE" | grep -c 'sbatch$') + 1))
cp "${@: -1}" "$SLURM_FAKE/$number.sbatch"
"$SLURM_FAKE/bin/begin" "$number"
echo "Submitted batch job $number"
"""
BEGIN = """#!/bin/bash
export SLURM_JOB_ID=$1 SLURM_NTASKS=1 SLURM_JOB_NUM_NODES=1
export SLURM_NODEID=0 SLURM_PROCID=0 SLURM_LOCALID=0
setsid bash "$SLURM_FAKE/$1.sbatch" >> "$SLURM_FAKE/$1.out" 2>&1 < /dev/null &
echo $! > "$SLURM_FAKE/$1.pid"
"""
SRUN = """#!/bin/bash
# srun OPTIONS COMMAND: the command, in place of this script.
while [[ "$1" == --* ]]; do
  [[ "$1" == --output || "$1" == --error ]] && shift
  shift
done
exec "$@"
"""
SACCT = """#!/bin/bash
echo "JobID|State|NodeList"
for file in "$SLURM_FAKE"/*.pid; do
  number=$(basename "$file" .pid)
  kill -0 "$(cat "$file")" 2> /dev/null && state=RUNNING || state=FAILED
  echo "$number|$state|here"
done
"""
SCONTROL = """#!/bin/bash
echo "scontrol $*" >> "$SLURM_FAKE/asked"
[ "$1" = requeue ] && (sleep 1; "$SLURM_FAKE/bin/begin" "$2") > /dev/null 2>&1 &
"""
SCANCEL = """#!/bin/bash
echo "scancel $*" >> "$SLURM_FAKE/asked"
kill -- -"$(cat "$SLURM_FAKE/${@: -1}.pid")"
"""


def write_slurm(folder: Path) -> dict[str, str]:
    """The variables with which a command uses these scripts, which keep their files in a folder."""
    scripts = {"sbatch": SBATCH, "begin": BEGIN, "srun": SRUN, "sacct": SACCT}
    scripts |= {"scontrol": SCONTROL, "scancel": SCANCEL}
    (folder / "bin").mkdir(parents=True)
    for name, text in scripts.items():
        path = folder / "bin" / name
        path.write_text(text)
        path.chmod(0o755)
    return {"SLURM_FAKE": str(folder), "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
