import qualified Data.Map.Strict as Map
import System.Exit

main :: IO ()
main = do
  let table = Map.fromList [(n * 7919 `mod` 1000003, replicate (n `mod` 20) 'v') | n <- [1 .. 200000 :: Int]]
  print (Map.size table, sum (map length (Map.elems table)))
  exitWith (ExitFailure 5)
