# program: Tantivy, building and searching a text index
# class: search index
# version: {python} -c 'import tantivy; print(tantivy.__version__)'
import random
import tantivy
import phases

generator = random.Random(6)
vocabulary = [f"word{number}" for number in range(50_000)]
weights = [1 / (rank + 10) for rank in range(len(vocabulary))]
stream = generator.choices(vocabulary, weights, k=1_200_000)
texts = [" ".join(stream[at:at + 40]) for at in range(0, len(stream), 37)]
schema = tantivy.SchemaBuilder().add_unsigned_field("id", stored=True).add_text_field("body").build()
phases.steady()
index = tantivy.Index(schema)
writer = index.writer(heap_size=256_000_000, num_threads=1)
for number in range(100_000):
    writer.add_document(tantivy.Document(id=number, body=texts[number % len(texts)]))
writer.commit()
index.reload()
searcher = index.searcher()
total = 0
for number in range(3_000):
    query = index.parse_query(f"{vocabulary[number]} {vocabulary[number * 7 % 5000]}", ["body"])
    total += searcher.search(query, 10, count=True).count
phases.end(total)
