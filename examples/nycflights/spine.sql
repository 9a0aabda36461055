-- One row per flight: its keys, the instant of its departure, what is known of
-- the schedule, and the label. FROM_DATE and TO_DATE are filled in by the caller.
SELECT origin, tailnum, carrier,
       time_hour + to_minutes(minute) AS departs,
       CAST(hour * 60 + minute AS DOUBLE) AS minute_of_day,
       CAST(isodow(time_hour) AS DOUBLE) AS weekday,
       CAST(distance AS DOUBLE) AS distance,
       arr_delay > 15 AS late
FROM flights
WHERE arr_delay IS NOT NULL AND tailnum IS NOT NULL
  AND time_hour >= TIMESTAMPTZ 'FROM_DATE 00:00:00+00' AND time_hour < TIMESTAMPTZ 'TO_DATE 00:00:00+00'
