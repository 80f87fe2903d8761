# program: jq
# version: jq --version
input=$SCRATCH/rows.json
[ -e "$input" ] || seq 1 60000 | awk '{ print "{\"id\":" $1 ",\"name\":\"name " $1 * 7919 % 1000003 "\"}" }' >"$input"
"$RUN" jq -s 'map(select(.id % 3 == 0)) | sort_by(.name) | .[0:3], length' "$input"
