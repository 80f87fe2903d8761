# program: OpenSSL: digests and encryption
# version: openssl version
text=$SCRATCH/text
[ -e "$text" ] || seq 1 700000 | awk '{ print ($1 * 7919) % 1000003, "line", $1 % 977, "of a text" }' >"$text"
"$RUN" openssl dgst -sha512 <"$text"
"$RUN" openssl enc -aes-256-cbc -nosalt -pbkdf2 -pass pass:word <"$text" | sha256sum
