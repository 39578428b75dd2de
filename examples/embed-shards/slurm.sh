#!/bin/bash
# Embed IMAGES in eight shards with an array job, then join them to OUT. Run this on a login node:
#   RUN=/shared/run IMAGES=/shared/photos OUT=/shared/photos.npy sh slurm.sh
set -eu
: "${RUN:?the folder of the run}" "${IMAGES:?the folder of images}" "${OUT:?the new .npy file}"
export RUN IMAGES OUT SHARDS=8

# Don't use SLURM_ARRAY_TASK_COUNT: to run shards 3 and 5 again, you submit --array=3,5, but there are still eight shards.
array=$(sbatch --parsable --job-name=embed --array="0-$((SHARDS - 1))" --cpus-per-task=8 --requeue --export=ALL \
    --wrap='srun dml embed "$RUN" "$IMAGES" --out "$OUT" --shard "$SLURM_ARRAY_TASK_ID/$SHARDS"')

sbatch --job-name=join --dependency="afterok:$array" --export=ALL \
    --wrap='dml embed "$RUN" "$IMAGES" --out "$OUT" --join'
