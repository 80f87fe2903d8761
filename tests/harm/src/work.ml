let () =
  let table = Hashtbl.create 16 in
  for n = 1 to 300000 do
    Hashtbl.replace table (n * 7919 mod 1000003) (String.make (n mod 40) 'v')
  done;
  let sum = Hashtbl.fold (fun _ text sum -> sum + String.length text) table 0 in
  Printf.printf "%d %d\n" (Hashtbl.length table) sum;
  exit 5
