-- expect: must return one table
-- expect: number
return 7
