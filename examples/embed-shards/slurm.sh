#!/bin/bash
# Embeds IMAGES in eight shards by an array job, then joins them to OUT. Run it on a login node:
#   RUN=/shared/run IMAGES=/shared/photos OUT=/shared/photos.npy sh slurm.sh
set -eu
: "${RUN:?the folder of the run}" "${IMAGES:?the folder of images}" "${OUT:?the new .npy file}"
export RUN IMAGES OUT SHARDS=8

# Not SLURM_ARRAY_TASK_COUNT: to run shards 3 and 5 again, one submits --array=3,5, and there are still eight.
array=$(sbatch --parsable --job-name=embed --array="0-$((SHARDS - 1))" --cpus-per-task=8 --requeue --export=ALL \
    --wrap='srun dml embed "$RUN" "$IMAGES" --out "$OUT" --shard "$SLURM_ARRAY_TASK_ID/$SHARDS"')

sbatch --job-name=join --dependency="afterok:$array" --export=ALL \
    --wrap='dml embed "$RUN" "$IMAGES" --out "$OUT" --join'
